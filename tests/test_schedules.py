"""Registering schedules and changing them, and what they will do next."""

from datetime import timedelta

import pytest
from django.db import transaction

from django_alkstore import (
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidSpec,
    ReservedName,
    schedule,
    unschedule,
)
from django_alkstore.models import Fire, Schedule

from .factories import ScheduleFactory
from .ledger import NOON, fired, jobs, tick_all
from .processes import across_connections, in_threads
from .races import RACER, open_gate

pytestmark = pytest.mark.django_db


# -- registering ----------------------------------------------------------------------------------


def test_a_schedule_is_stored_with_its_first_boundary_one_interval_from_now():
    row = schedule("nightly", "@every 1h", "reports", {"kind": "stock"}, priority=7)
    assert (row.spec, row.queue, row.payload) == ("@every 1h", "reports", {"kind": "stock"})
    assert (row.enabled, row.priority, row.max_attempts) == (True, 7, None)
    assert row.next_fire_at - row.created_at == timedelta(hours=1)
    assert row.next_fire_at == Schedule.objects.get(name="nightly").next_fire_at


@pytest.mark.parametrize(
    ("error", "args", "options"),
    [
        (InvalidName, ("no spaces", "@every 1m", "reports"), {}),
        (InvalidName, ("nightly", "@every 1m", None), {}),
        (ReservedName, ("__alkstore_x", "@every 1m", "reports"), {}),
        (ReservedName, ("nightly", "@every 1m", "__alkstore_outbox:receipts"), {}),
        (InvalidSpec, ("nightly", "@every 0s", "reports"), {}),
        (InvalidSpec, ("nightly", None, "reports"), {}),
        (InvalidPayload, ("nightly", "@every 1m", "reports", {1, 2}), {}),
        (InvalidOption, ("nightly", "@every 1m", "reports"), {"max_attempts": 0}),
        (InvalidOption, ("nightly", "@every 1m", "reports"), {"using": "elsewhere"}),
        (TypeError, ("nightly", "@every 1m", "reports"), {"delay": 5}),
        (TypeError, ("nightly", "@every 1m", "reports"), {"expires": 60}),
    ],
)
def test_a_wrong_schedule_is_refused_before_any_statement(error, args, options, statements):
    with pytest.raises(error):
        schedule(*args, **options)
    assert len(statements) == 0


def test_registering_a_schedule_unchanged_writes_nothing(statements):
    stored = schedule("nightly", "@every 1h", "reports", {"a": 1}, backoff=1)
    before = len(statements)
    again = schedule("nightly", "@every 1h", "reports", {"a": 1}, backoff=1)
    assert (again.updated_at, again.next_fire_at) == (stored.updated_at, stored.next_fire_at)
    assert [s["sql"][:6] for s in statements[before:]] == ["SELECT"]


def test_true_is_another_payload_than_one():
    schedule("nightly", "@every 1h", "reports", {"n": 1})
    assert schedule("nightly", "@every 1h", "reports", {"n": True}).payload["n"] is True


def test_a_changed_payload_leaves_the_next_boundary_where_it_is():
    ScheduleFactory(name="nightly", spec="@every 1h", next_fire_at=NOON)
    row = schedule("nightly", "@every 1h", "reports", {"kind": "new"})
    assert (row.payload, row.next_fire_at) == ({"kind": "new"}, NOON)


def test_a_changed_spec_counts_the_next_boundary_from_now():
    ScheduleFactory(name="nightly", spec="@every 1h", next_fire_at=NOON)
    row = schedule("nightly", "@every 2h", "reports")
    assert (row.spec, row.next_fire_at - row.updated_at) == ("@every 2h", timedelta(hours=2))


def test_registering_again_without_options_goes_back_to_the_queues():
    schedule("nightly", "@every 1h", "reports", priority=7, expires_in=60, max_attempts=1)
    row = schedule("nightly", "@every 1h", "reports")
    assert (row.priority, row.expires_in, row.max_attempts) == (None, None, None)


def test_registering_a_disabled_schedule_leaves_it_disabled():
    ScheduleFactory(name="nightly", enabled=False)
    assert schedule("nightly", "@every 1h", "reports").enabled is False


def test_registering_every_ten_minutes_postpones_nothing():
    first = schedule("nightly", "@every 1h", "reports").next_fire_at
    for minutes in range(-60, 300, 10):
        schedule("nightly", "@every 1h", "reports")
        tick_all(first + timedelta(minutes=minutes))
    boundaries = Fire.objects.order_by("boundary").values_list("boundary", flat=True)
    assert list(boundaries) == [first + timedelta(hours=k) for k in range(5)]


def test_unschedule_deletes_the_schedule_and_leaves_its_jobs_and_ledger():
    ScheduleFactory(name="nightly", next_fire_at=NOON)
    tick_all(NOON)
    assert unschedule("nightly") is True
    assert unschedule("nightly") is False
    assert (Schedule.objects.count(), jobs(), fired()) == (0, [0], [0])


REGISTER = (
    RACER
    + """
from contextlib import nullcontext
from django.db import transaction
from django_alkstore import schedule
from django_alkstore.models import Schedule
print("ready", flush=True)
wait_for("go")
for n in range(10):
    with transaction.atomic() if number % 2 else nullcontext():
        schedule("nightly", f"@every {n + 1}m", "reports", number)
        assert Schedule.objects.count() == 1
"""
)


@across_connections
def test_processes_that_register_one_schedule_at_once_leave_one_row_and_no_error(race, tmp_path):
    racers = race(REGISTER, 8)
    open_gate(tmp_path / "go")
    assert [racer.wait() for racer in racers] == [0] * 8, [racer.text for racer in racers]
    assert Schedule.objects.get().name == "nightly"


@across_connections
def test_registering_beside_an_uncommitted_registration_leaves_the_transaction_usable(only_on):
    only_on("postgresql", "mysql")

    def register(payload):
        with transaction.atomic():
            schedule("nightly", "@every 1m", "reports", payload)
            return Schedule.objects.get().payload

    assert sorted(in_threads(*[lambda n=n: register(n) for n in range(8)])) == list(range(8))
