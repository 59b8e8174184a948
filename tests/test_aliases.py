"""Two databases: everything goes to the one that is meant, and nothing is read from the other."""

from contextlib import contextmanager
from copy import deepcopy

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction

from django_alkstore import (
    StopToken,
    TransactionRequired,
    fire_now,
    get_job,
    list_schedules,
    lock,
    outbox,
    queue,
    schedule,
    sql,
    unschedule,
    update_schedule,
)
from django_alkstore.holds import Source
from django_alkstore.models import Fire, Job, Lock, Schedule
from django_alkstore.operations import requeue
from django_alkstore.scheduler import Scheduler
from django_alkstore.status import snapshot
from django_alkstore.workers import Limits, Worker

from .factories import ago

SECOND = "second"
pytestmark = pytest.mark.django_db(
    transaction=True,
    databases=["default", SECOND],
    available_apps=["django_alkstore", "testproject.shop"],
)


@pytest.fixture(scope="module", autouse=True)
def second(tmp_path_factory, django_db_setup, django_db_blocker):
    """Another database beside that of the tests, in a file; its alias."""
    file = tmp_path_factory.mktemp("second") / "second.sqlite3"
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
    connections.settings[SECOND] = deepcopy(connection.settings_dict) | settings
    connections.settings[SECOND]["OPTIONS"] = options
    with django_db_blocker.unblock():
        call_command("migrate", database=SECOND, verbosity=0)
    yield SECOND
    connections[SECOND].close()
    del connections[SECOND], connections.settings[SECOND]
    sql._engine_of.cache_clear()


class WritesThere:
    """A router that writes our models to the second database, and reads them from the first."""

    def db_for_write(self, model, **hints):
        return SECOND

    def db_for_read(self, model, **hints):
        return "default"


def by_argument(settings):
    return {"using": SECOND}


def by_setting(settings):
    settings.ALKSTORE = {"DATABASE": SECOND}
    return {}


def by_router_that_reads_elsewhere(settings):
    settings.DATABASE_ROUTERS = [WritesThere()]
    return {}


@contextmanager
def unused(alias):
    """Fails if this thread sends a statement to the database."""

    def refuse(execute, text, params, many, context):
        pytest.fail(f"sent to {alias}: {text}")

    with connections[alias].execute_wrapper(refuse):
        yield


def use_queues(**using):
    reports = queue("reports", **using)
    first, *others = reports.enqueue_many(range(5))
    job = reports.claim("w")
    assert (job.id, job.heartbeat(), job.retry("once more", delay=0)) == (first, True, True)
    batch = reports.claim_batch("w", 2)
    assert (batch[0].fail("no"), reports.ack_batch(batch[1:]), reports.cancel(first)) == (
        True,
        1,
        True,
    )
    assert get_job(first, **using).state == "dead"
    assert requeue([first], **using).ids == [first]
    return len(others)


def use_outboxes(**using):
    outbox("receipts", **using).enqueue({})
    assert outbox("receipts", **using).run_once("w", lambda job: None) is True


def use_locks(**using):
    with lock("rates", **using) as rates:
        assert (lock("rates", **using).acquire(), rates.renew()) == (False, True)


def use_schedules(**using):
    for name in ("nightly", "hourly"):
        schedule(name, "@every 1h", "reports", **using)
    assert update_schedule("nightly", priority=3, **using).priority == 3
    assert fire_now("nightly", **using)
    assert unschedule("hourly", **using)
    assert [row.name for row in list_schedules(**using)] == ["nightly"]
    Schedule.objects.using(SECOND).update(next_fire_at=ago(1))
    scheduler = Scheduler(**using)
    scheduler.lead()
    scheduler.pass_once()
    scheduler.resign()
    assert Fire.objects.using(SECOND).count() == 2


def use_workers(**using):
    done = []
    source = Source(queue("reports", **using), lambda job: done.append(job.id))
    Worker([source], "w", StopToken(), Limits(0.05)).burst()
    return len(done)


@pytest.mark.parametrize("mean", [by_argument, by_setting, by_router_that_reads_elsewhere])
def test_everything_happens_in_the_database_that_is_meant(mean, second, settings):
    using = mean(settings)
    with unused("default"):
        use_queues(**using)
        use_outboxes(**using)
        use_locks(**using)
        use_schedules(**using)
        assert snapshot(**using).schedules[0].name == "nightly"
        assert use_workers(**using) == 5
    counts = [model.objects.using(second).count() for model in (Job, Schedule, Lock)]
    assert counts == [1, 1, 2]
    assert not any(model.objects.using("default").exists() for model in (Job, Schedule, Lock, Fire))


@pytest.mark.parametrize("of", [queue, outbox])
def test_enqueue_tx_asks_for_a_transaction_on_its_own_database(of, second):
    with transaction.atomic(), pytest.raises(TransactionRequired):
        of("letters", using=second).enqueue_tx({})
    with transaction.atomic(using=second), pytest.raises(TransactionRequired):
        of("letters").enqueue_tx({})
    assert not Job.objects.using(second).exists()


def test_what_rolls_back_is_what_was_enqueued_on_that_database(second):
    with transaction.atomic(), transaction.atomic(using=second):
        queue("letters").enqueue_tx("stays")
        queue("letters", using=second).enqueue_tx("goes")
        transaction.set_rollback(True, using=second)
    found = [
        list(Job.objects.using(a).values_list("payload", flat=True)) for a in ("default", second)
    ]
    assert found == [["stays"], []]
