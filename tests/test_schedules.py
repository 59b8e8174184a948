"""Registering schedules and changing them, and what they will do next."""

import random
import threading
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction

from django_alkstore import (
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidSpec,
    ReservedName,
    fire_now,
    list_schedules,
    next_boundaries,
    pause_schedule,
    resume_schedule,
    schedule,
    unschedule,
    update_schedule,
)
from django_alkstore.models import Fire, Job, Schedule
from django_alkstore.scheduler import Scheduler

from .factories import ScheduleFactory, ago, aware
from .ledger import NOON, at, fired, jobs, tick_all
from .processes import across_connections, held, in_threads
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
        (InvalidOption, ("nightly", "@cron 0 9 * * *", "reports"), {"timezone": "Nowhere/None"}),
        (InvalidOption, ("nightly", "@every 1m", "reports"), {"catch_up": "some"}),
        (InvalidOption, ("nightly", "@every 1m", "reports"), {"starts_at": at(1), "ends_at": NOON}),
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


@pytest.mark.parametrize("spec", ["@every 1h", "@cron 17 * * * *"])
def test_registering_every_ten_minutes_postpones_nothing(spec):
    first = schedule("nightly", spec, "reports").next_fire_at
    for minutes in range(-60, 300, 10):
        schedule("nightly", spec, "reports")
        tick_all(aware(first) + timedelta(minutes=minutes))
    boundaries = Fire.objects.order_by("boundary").values_list("boundary", flat=True)
    assert list(boundaries) == [first + timedelta(hours=k) for k in range(5)]


def test_unschedule_deletes_the_schedule_and_leaves_its_jobs_and_ledger():
    ScheduleFactory(name="nightly", next_fire_at=NOON)
    tick_all(NOON)
    assert unschedule("nightly") is True
    assert unschedule("nightly") is False
    assert (Schedule.objects.count(), jobs(), fired()) == (0, [0], [0])


def test_a_schedule_that_comes_to_be_declared_in_between_is_not_deleted():
    ScheduleFactory(name="nightly")

    def declare_first(execute, sql, params, many, context):
        if sql.startswith("DELETE"):
            Schedule.objects.update(declared=True)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(declare_first):
        assert unschedule("nightly") is False
    assert Schedule.objects.get().declared


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
        spec = f"@every {n + 1}m" if number % 4 < 2 else f"@cron {n} * * * *"
        schedule("nightly", spec, "reports", number)
        assert Schedule.objects.count() == 1
"""
)


@across_connections
def test_processes_that_register_one_schedule_at_once_leave_one_row_and_no_error(
    race, tmp_path, own_transactions
):
    racers = race(REGISTER, 8)
    open_gate(tmp_path / "go")
    assert [racer.wait() for racer in racers] == [0] * 8, [racer.text for racer in racers]
    assert Schedule.objects.get().name == "nightly"


@across_connections
def test_registering_beside_an_uncommitted_registration_leaves_the_transaction_usable(
    only_on, own_transactions
):
    only_on("postgresql", "mysql")

    def register(payload):
        with transaction.atomic():
            schedule("nightly", "@every 1m", "reports", payload)
            return Schedule.objects.get().payload

    assert sorted(in_threads(*[lambda n=n: register(n) for n in range(8)])) == list(range(8))


# -- changing -------------------------------------------------------------------------------------


def columns_of(name="nightly"):
    """What a row says but for when it was changed."""
    values = Schedule.objects.values().get(name=name)
    return {key: value for key, value in values.items() if key != "updated_at"}


CHANGES = {
    "payload": ({"payload": {"kind": "new"}}, {"payload": {"kind": "new"}}),
    "null payload": ({"payload": None}, {"payload": None}),
    "queue": ({"queue": "mails"}, {"queue": "mails"}),
    "priority": ({"priority": 0}, {"priority": 0}),
    "priority of the queue": ({"priority": None}, {"priority": None}),
    "max_attempts of the queue": ({"max_attempts": None}, {"max_attempts": None}),
    "expires_in": ({"expires_in": timedelta(minutes=1)}, {"expires_in": 60.0}),
    "catch_up": ({"catch_up": "latest"}, {"catch_up": "latest"}),
    "overlap": ({"overlap": "queue"}, {"overlap": "queue"}),
    "jitter": ({"jitter": 0}, {"jitter": 0.0}),
    "ends_at": ({"ends_at": at(9e9)}, {"ends_at": at(9e9)}),
    "max_fires": ({"max_fires": 9}, {"max_fires": 9}),
    "spec as it was": ({"spec": "@cron 0 12 * * *"}, {}),
    "two": ({"priority": 1, "payload": 0}, {"priority": 1, "payload": 0}),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize(("changes", "wanted"), CHANGES.values(), ids=CHANGES)
def test_only_what_is_given_changes_and_the_next_boundary_stays(changes, wanted):
    ScheduleFactory(name="nightly", spec="@cron 0 12 * * *", next_fire_at=NOON,
                    payload={"kind": "old"}, priority=7, max_attempts=2, jitter=5.0,
                    timezone="Europe/London")  # fmt: skip
    before = columns_of()
    row = update_schedule("nightly", **changes)
    assert columns_of() == before | wanted
    assert (row.pk, row.next_fire_at) == (before["id"], NOON)


def test_a_null_payload_is_another_than_none_given():
    ScheduleFactory(name="nightly", payload=5)
    assert update_schedule("nightly", priority=1).payload == 5
    assert update_schedule("nightly", payload=None).payload is None


MOVES = {
    "spec": ({"spec": "@cron 30 2 * * *"}, "Europe/London"),
    "timezone": ({"timezone": "Asia/Kolkata"}, "Asia/Kolkata"),
    "timezone of the project": ({"timezone": None}, "UTC"),
    "start": ({"starts_at": at(0)}, "Europe/London"),
}


@pytest.mark.parametrize(("changes", "zone"), MOVES.values(), ids=MOVES)
def test_what_moves_its_boundaries_counts_the_next_one_from_now(changes, zone, settings):
    settings.TIME_ZONE = "UTC"
    ScheduleFactory(name="nightly", spec="@cron 0 9 * * *", next_fire_at=NOON,
                    timezone="Europe/London")  # fmt: skip
    row = update_schedule("nightly", **changes)
    assert timedelta(0) < row.next_fire_at - row.updated_at <= timedelta(days=1, hours=1)
    local = aware(row.next_fire_at).astimezone(ZoneInfo(zone))
    assert f"{local:%H:%M}" == ("02:30" if "spec" in changes else "09:00")


def test_a_start_in_the_future_is_waited_for():
    ScheduleFactory(name="nightly", spec="@every 1h")
    row = update_schedule("nightly", starts_at=ago(-86_400))
    assert row.next_fire_at == row.starts_at


def test_changing_a_schedule_that_is_not_there_makes_none():
    assert update_schedule("nobody", priority=1) is None
    assert not Schedule.objects.exists()


def test_a_paused_schedule_can_be_changed_and_stays_paused():
    ScheduleFactory(name="nightly", enabled=False)
    assert update_schedule("nightly", spec="@every 2h").enabled is False


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (TypeError, {"delay": 5}),
        (TypeError, {"expires": 60}),
        (TypeError, {"enabled": False}),
        (InvalidSpec, {"spec": None}),
        (InvalidSpec, {"spec": "0 9 * * *"}),
        (InvalidSpec, {"spec": "@cron 0 0 30 2 *"}),
        (InvalidName, {"queue": None}),
        (ReservedName, {"queue": "__alkstore_outbox:receipts"}),
        (InvalidPayload, {"payload": {1, 2}}),
        (InvalidOption, {"max_attempts": 0}),
        (InvalidOption, {"timezone": "Nowhere/None"}),
        (InvalidOption, {"catch_up": None}),
        (InvalidOption, {"jitter": -1}),
        (InvalidOption, {"max_fires": 0}),
        (InvalidOption, {"starts_at": at(1), "ends_at": at(0)}),
        (InvalidOption, {"using": "elsewhere"}),
    ],
)
def test_a_wrong_change_is_refused_before_any_statement(error, changes, statements):
    with pytest.raises(error):
        update_schedule("nightly", **changes)
    assert len(statements) == 0


def test_a_change_that_the_row_forbids_is_refused_and_leaves_it_as_it_was():
    ScheduleFactory(name="nightly", starts_at=NOON)
    before = Schedule.objects.values().get()
    with pytest.raises(InvalidOption, match="expected ends_at to be no earlier than starts_at"):
        update_schedule("nightly", ends_at=at(-1), priority=5)
    assert Schedule.objects.values().get() == before


def test_a_change_is_undone_with_the_callers_transaction():
    ScheduleFactory(name="nightly", priority=1)
    with transaction.atomic():
        update_schedule("nightly", priority=2)
        transaction.set_rollback(True)
    assert Schedule.objects.get().priority == 1


@pytest.mark.parametrize(
    "again",
    [{"max_fires": 4}, {"max_fires": None}, {"spec": "@every 2m", "max_fires": 9}],
    ids=["more", "no end", "another spec too"],
)
def test_a_new_end_lets_a_schedule_go_on_that_had_ended(again):
    schedule("nightly", "@every 1m", "reports", max_fires=2)
    tick_all(Schedule.objects.get().next_fire_at + timedelta(minutes=10))
    ended = Schedule.objects.get()
    assert (ended.next_fire_at, ended.fires, ended.ended_at is None) == (None, 2, False)
    row = update_schedule("nightly", **again)
    assert row.next_fire_at > row.updated_at and row.ended_at is None
    tick_all(row.next_fire_at)
    assert Schedule.objects.get().fires == 3


@pytest.mark.parametrize("changes", [{"payload": 1}, {"priority": 1}, {"max_fires": 2}, {}])
def test_another_change_leaves_an_ended_schedule_ended(changes):
    ScheduleFactory(name="nightly", next_fire_at=None, ended_at=NOON, fires=2, max_fires=2)
    row = update_schedule("nightly", **changes)
    assert (row.next_fire_at, row.ended_at) == (None, NOON)
    assert schedule("nightly", "@every 1m", "reports", 5, max_fires=2).ended_at == NOON


def test_a_new_end_that_has_passed_too_leaves_it_ended():
    ScheduleFactory(name="nightly", next_fire_at=None, ended_at=NOON, ends_at=NOON)
    row = update_schedule("nightly", ends_at=at(60))
    assert row.next_fire_at is None and row.ended_at is not None


@across_connections
def test_changes_of_several_columns_at_once_are_all_there_afterwards():
    changes = [{"priority": 7}, {"payload": "new"}, {"queue": "mails"}, {"jitter": 3.0},
               {"overlap": "skip"}, {"max_attempts": 9}]  # fmt: skip
    barrier = threading.Barrier(len(changes))

    def change(what):
        barrier.wait(30)
        update_schedule("nightly", **what)

    for _ in range(5):
        Schedule.objects.all().delete()
        ScheduleFactory(name="nightly", payload="old")
        before = columns_of()
        in_threads(*[lambda what=what: change(what) for what in changes])
        assert columns_of() == before | {k: v for what in changes for k, v in what.items()}


@across_connections
def test_a_change_that_commits_just_before_ours_is_not_lost_and_is_reckoned_with(only_on):
    only_on("postgresql", "mysql")
    ScheduleFactory(name="nightly", spec="@cron 0 9 * * *", payload="old", next_fire_at=NOON)
    others = iter([{"priority": 7, "spec": "@cron 0 10 * * *"}])

    def overtake(execute, sql, params, many, context):
        if sql.startswith("UPDATE") and "django_alkstore_schedule" in sql:
            for what in others:
                in_threads(lambda what=what: update_schedule("nightly", **what))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(overtake):
        row = update_schedule("nightly", payload="new", timezone="Asia/Kolkata")
    assert (row.payload, row.priority, row.spec) == ("new", 7, "@cron 0 10 * * *")
    assert f"{aware(row.next_fire_at).astimezone(timezone.utc):%H:%M}" == "04:30"


@across_connections
def test_two_schedules_are_changed_at_once_and_neither_waits_for_the_other(
    only_on, own_transactions
):
    only_on("postgresql", "mysql")
    for name in ("one", "two", "three"):
        ScheduleFactory(name=name, spec="@cron * * * * *", next_fire_at=NOON)

    @contextmanager
    def changing():
        with transaction.atomic():
            update_schedule("one", priority=1)
            yield

    with held(changing), transaction.atomic():
        update_schedule("two", priority=2)
        assert in_threads(lambda: (Scheduler().tick(NOON), fired())) == [(False, [0])]
    tick_all(NOON)
    assert fired() == [0, 0, 0]


@pytest.mark.parametrize("spec", ["@every 1h", "@cron 17 * * * *"])
def test_changing_options_again_and_again_postpones_nothing(spec):
    first = schedule("nightly", spec, "reports").next_fire_at
    for minutes in range(-60, 300, 10):
        update_schedule("nightly", payload=minutes, priority=minutes)
        schedule("nightly", spec, "reports")
        tick_all(aware(first) + timedelta(minutes=minutes))
    boundaries = Fire.objects.order_by("boundary").values_list("boundary", flat=True)
    assert list(boundaries) == [first + timedelta(hours=k) for k in range(5)]


# -- pausing --------------------------------------------------------------------------------------


def test_a_paused_schedule_fires_nothing():
    row = ScheduleFactory(overdue=True)
    assert pause_schedule(row.name)
    Scheduler().tick()
    assert not Job.objects.exists()


def test_pausing_and_resuming_say_whether_there_was_anything_to_do():
    row = ScheduleFactory()
    assert [pause_schedule(row.name), pause_schedule(row.name)] == [True, False]
    assert [resume_schedule(row.name), resume_schedule(row.name)] == [True, False]
    assert [pause_schedule("nobody"), resume_schedule("nobody")] == [False, False]


def test_boundaries_that_passed_during_a_pause_are_not_made_up_for():
    row = ScheduleFactory(next_fire_at=ago(630), enabled=False)
    resume_schedule(row.name)
    Scheduler().tick()
    assert not Job.objects.exists()


def test_resuming_stays_on_the_grid():
    row = ScheduleFactory(next_fire_at=ago(630), enabled=False)
    resume_schedule(row.name)
    after = Schedule.objects.get().next_fire_at - row.next_fire_at
    assert after.total_seconds() == pytest.approx(660, abs=61) and not after.seconds % 60


def test_a_boundary_that_is_still_to_come_stays_through_a_pause():
    row = ScheduleFactory()
    pause_schedule(row.name)
    resume_schedule(row.name)
    assert Schedule.objects.get().next_fire_at == row.next_fire_at


def test_a_spec_that_was_spoilt_by_hand_is_not_resumed():
    row = ScheduleFactory(spec="@never", enabled=False)
    with pytest.raises(InvalidSpec):
        resume_schedule(row.name)
    assert not Schedule.objects.get().enabled


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_resuming_goes_on_at_the_next_time_that_the_clock_shows(zone):
    ScheduleFactory(name="nightly", spec="@cron 0 9 * * *", timezone=zone, next_fire_at=NOON,
                    enabled=False)  # fmt: skip
    resume_schedule("nightly")
    row = Schedule.objects.get()
    assert timedelta(0) < row.next_fire_at - row.updated_at <= timedelta(hours=25)
    assert row.next_fire_at.astimezone(ZoneInfo(zone)).hour == 9
    Scheduler().tick()
    assert not Job.objects.exists()


def test_a_schedule_whose_end_passed_during_a_pause_ends_as_it_is_resumed():
    ScheduleFactory(name="nightly", next_fire_at=NOON, ends_at=at(60), enabled=False)
    resume_schedule("nightly")
    row = Schedule.objects.get()
    assert (row.enabled, row.next_fire_at, row.ended_at is None) == (True, None, False)


def test_an_ended_schedule_stays_ended_through_a_pause():
    row = ScheduleFactory(next_fire_at=None, ended_at=NOON, max_fires=1, fires=1)
    pause_schedule(row.name)
    resume_schedule(row.name)
    tick_all(at(600))
    again = Schedule.objects.get()
    assert (again.enabled, again.next_fire_at, again.ended_at) == (True, None, NOON)


# -- firing by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
def test_firing_by_hand_enqueues_one_job_at_once(enabled):
    row = ScheduleFactory(enabled=enabled, payload={"kind": "stock"}, max_attempts=9)
    job = Job.objects.get(pk=fire_now(row.name, by="ada"))
    assert (job.state, job.payload, job.max_attempts) == ("ready", {"kind": "stock"}, 9)
    assert (job.schedule, job.scheduled_for) == (row.name, None)


def test_a_fire_by_hand_is_in_the_ledger_and_moves_no_boundary():
    row = ScheduleFactory()
    ids = [fire_now(row.name, by="ada"), fire_now(row.name, by="ada")]
    fires = Fire.objects.filter(schedule=row.name, boundary=None, leader="ada")
    assert sorted(fires.values_list("job_id", flat=True)) == ids
    assert Schedule.objects.get().next_fire_at == row.next_fire_at


def test_a_fire_by_hand_takes_no_boundarys_place():
    row = ScheduleFactory(overdue=True)
    fire_now(row.name)
    Scheduler().tick()
    assert Fire.objects.filter(boundary=row.next_fire_at).count() == 1
    assert Job.objects.count() == 2


def test_firing_what_is_not_there_does_nothing():
    assert fire_now("nobody") is None
    assert not Job.objects.exists() and not Fire.objects.exists()


def test_a_fire_by_hand_and_its_job_are_there_together_or_not_at_all():
    row = ScheduleFactory()
    with transaction.atomic():
        fire_now(row.name)
        transaction.set_rollback(True)
    assert not Job.objects.exists() and not Fire.objects.exists()


def test_a_fire_by_hand_is_none_of_those_that_a_schedule_may_fire():
    row = ScheduleFactory(next_fire_at=NOON, max_fires=1)
    fire_now(row.name)
    assert Schedule.objects.get().fires == 0
    tick_all(NOON)
    assert Job.objects.count() == 2


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue"])
def test_firing_by_hand_minds_neither_a_live_job_nor_the_end(overlap):
    row = ScheduleFactory(overlap=overlap, next_fire_at=None, ended_at=NOON)
    assert len({fire_now(row.name), fire_now(row.name)}) == 2


# -- looking --------------------------------------------------------------------------------------


def test_schedules_are_listed_by_name_paused_and_ended_ones_too():
    ScheduleFactory(name="b", enabled=False)
    ScheduleFactory(name="c", next_fire_at=None, ended_at=NOON)
    ScheduleFactory(name="a")
    assert [row.name for row in list_schedules()] == ["a", "b", "c"]


def test_the_next_boundaries_are_on_the_clocks_of_the_schedules_own_zone():
    begin = datetime(2025, 3, 8, 7, 30, tzinfo=timezone.utc)
    ScheduleFactory(name="nightly", spec="@cron 30 2 * * *", timezone="America/New_York",
                    next_fire_at=begin)  # fmt: skip
    found = next_boundaries("nightly", 3)
    assert [f"{at:%m-%d %H:%M %Z}" for at in found] == [
        "03-08 02:30 EST", "03-09 03:00 EDT", "03-10 02:30 EDT",
    ]  # fmt: skip
    assert {at.tzinfo.key for at in found} == {"America/New_York"}


def test_without_a_zone_of_its_own_they_are_on_the_projects_clocks(settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    schedule("morning", "@cron 0 9 * * *", "reports")
    assert {f"{at:%H:%M %Z}" for at in next_boundaries("morning", 400)} == {"09:00 IST"}


def test_there_are_ten_unless_it_is_said_how_many():
    ScheduleFactory(name="nightly")
    assert len(next_boundaries("nightly")) == 10
    assert len(next_boundaries("nightly", 1)) == 1


@pytest.mark.parametrize("n", [0, -1, True, "5", 1.5, None, 10**9])
def test_a_number_of_boundaries_that_is_none_is_refused_before_any_statement(n, statements):
    with pytest.raises(InvalidOption, match="^expected n to be an int from 1 to "):
        next_boundaries("nightly", n)
    assert len(statements) == 0


def test_what_is_not_there_or_has_ended_has_no_next_boundaries():
    ScheduleFactory(name="ended", next_fire_at=None, ended_at=NOON)
    assert (next_boundaries("ended"), next_boundaries("nobody")) == ([], [])


def test_no_boundary_is_shown_beyond_an_end_that_was_brought_forward():
    ScheduleFactory(name="nightly", next_fire_at=at(60))
    update_schedule("nightly", ends_at=at(30))
    assert next_boundaries("nightly") == []
    tick_all(at(60))
    assert (fired(), Schedule.objects.get().next_fire_at) == ([], None)


def test_of_a_paused_schedule_they_are_those_after_it_were_resumed_now():
    ScheduleFactory(name="nightly", spec="@cron 0 9 * * *", next_fire_at=NOON, enabled=False)
    found = next_boundaries("nightly", 2)
    resume_schedule("nightly")
    assert found[0] == aware(Schedule.objects.get().next_fire_at) > aware(ago(0))


def test_a_schedule_that_was_never_dated_shows_those_from_now_on():
    ScheduleFactory(name="nightly", spec="@cron 0 9 * * *", next_fire_at=None)
    (found,) = next_boundaries("nightly", 1)
    tick_all(None)
    assert found == aware(Schedule.objects.get().next_fire_at)


PLACES = [
    ("America/New_York", datetime(2025, 3, 8, 5, tzinfo=timezone.utc)),
    ("America/New_York", datetime(2025, 11, 1, 4, tzinfo=timezone.utc)),
    ("Australia/Lord_Howe", datetime(2025, 4, 4, 13, tzinfo=timezone.utc)),
    ("Africa/Casablanca", datetime(2025, 2, 22, tzinfo=timezone.utc)),
    ("UTC", datetime(2024, 2, 28, tzinfo=timezone.utc)),
]
SPECS = ["@every 7m", "@every 5h", "@cron */17 * * * *", "@cron 30 1,2 * * *", "@cron 5 0-3 * * *"]


@pytest.mark.parametrize("seed", range(8))
def test_the_next_boundaries_are_those_that_the_ticks_then_fire(seed):
    rng = random.Random(seed)
    for n in range(5):
        name, (zone, begin) = f"schedule-{n}", rng.choice(PLACES)
        ScheduleFactory(
            name=name,
            spec=rng.choice(SPECS),
            timezone=zone,
            next_fire_at=begin + timedelta(minutes=rng.randrange(600)),
            catch_up=rng.choice(["all", "latest", "none"]),
            overlap=rng.choice(["allow", "skip", "queue"]),
            jitter=rng.choice([0, 60]),
            ends_at=rng.choice([None, begin + timedelta(hours=rng.randrange(6, 60))]),
            max_fires=rng.choice([None, 3, 11]),
        )
        # In UTC: to Python, a local time that comes twice equals no time of another zone.
        ahead = [at.astimezone(timezone.utc) for at in next_boundaries(name, 12)]
        assert ahead == sorted(set(ahead))
        for boundary in ahead:
            Scheduler().tick(boundary - timedelta(seconds=1))
            Scheduler().tick(boundary + timedelta(seconds=rng.choice([0, 0.4, 20])))
            Job.objects.all().delete()
        fires = Fire.objects.filter(schedule=name, job_id__isnull=False)
        found = fires.order_by("boundary").values_list("boundary", flat=True)
        assert [aware(boundary).astimezone(timezone.utc) for boundary in found] == ahead
        assert not Fire.objects.filter(skipped__gt=0).exists()
        assert (Schedule.objects.get(name=name).ended_at is None) or len(ahead) < 12
        Schedule.objects.all().delete()


def test_the_verbs_of_a_row_are_the_public_ones():
    row = schedule("nightly", "@cron 0 9 * * *", "reports", timezone="Asia/Kolkata")
    assert [row.pause(), row.pause(), row.resume(), row.resume()] == [True, False, True, False]
    assert row.change(priority=5).priority == 5
    assert Fire.objects.get(job_id=row.fire_now("ada")).leader == "ada"
    assert row.next_boundaries(3) == next_boundaries("nightly", 3)
    unschedule("nightly")
    assert [row.pause(), row.resume(), row.change(), row.fire_now()] == [False, False, None, None]
    assert row.next_boundaries() == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"spec": "@every 60s"}, {"spec": "@every 1m"}),
        ({"spec": "@every 1m"}, {"timezone": "Asia/Tokyo"}),
        ({"spec": "@cron 0 9 * * *"}, {"spec": "@cron 0 9 * * ?", "timezone": "UTC"}),
    ],
)
def test_other_words_for_the_same_boundaries_leave_the_next_one_where_it_is(
    before, after, settings
):
    settings.TIME_ZONE = "UTC"
    ScheduleFactory(name="nightly", next_fire_at=NOON, **before)
    assert update_schedule("nightly", **after).next_fire_at == NOON
