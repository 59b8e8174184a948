"""What is deleted, when, and what never is."""

from contextlib import contextmanager

import pytest
from django.db import DatabaseError, connection, transaction

from django_alkstore import StopToken, queue, reads, sql
from django_alkstore.models import Count, Fire, Job
from django_alkstore.operations import requeue
from django_alkstore.retention import BATCH, Pruner, batches, finished
from django_alkstore.scheduler import Scheduler

from .factories import CountFactory, FireFactory, JobFactory, ScheduleFactory, ago
from .piles import pile
from .processes import across_connections, held, locking

pytestmark = pytest.mark.django_db

DAY = 86_400


def pruned():
    """Delete all that is due; what it was, without the steps that found nothing."""
    return [(b.what, b.queue, b.count) for b in batches(sql.engine()) if b.count]


def test_dead_jobs_go_after_thirty_days():
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    kept = JobFactory(dead=True, finished_at=ago(29 * DAY))
    assert pruned() == [("dead", "reports", 1)]
    assert Job.objects.get() == kept


def test_done_jobs_go_after_what_their_queue_keeps(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"retention": 60}, "mails": {"retention": DAY}}}
    JobFactory(done=True, finished_at=ago(100))
    kept = JobFactory(queue="mails", done=True, finished_at=ago(100))
    assert pruned() == [("done", "reports", 1)]
    assert Job.objects.get() == kept


def test_done_jobs_of_a_queue_that_keeps_none_any_more_go_with_the_dead_ones():
    JobFactory(done=True, finished_at=ago(31 * DAY))
    JobFactory(done=True, finished_at=ago(100))
    assert pruned() == [("done", "reports", 1)]


def test_a_life_of_none_is_for_ever(settings):
    settings.ALKSTORE = dict.fromkeys(["DEAD_RETENTION", "FIRE_RETENTION", "COUNT_RETENTION"])
    JobFactory(dead=True, finished_at=ago(9_000 * DAY))
    FireFactory(fired_at=ago(9_000 * DAY))
    CountFactory(minute=ago(9_000 * DAY))
    assert pruned() == []


def test_a_life_of_zero_is_none_at_all(settings):
    settings.ALKSTORE = {"DEAD_RETENTION": 0}
    JobFactory(dead=True, finished_at=ago(1))
    assert pruned() == [("dead", "reports", 1)]


@pytest.mark.parametrize("kind", ["scheduled", "running", "lapsed", "expired"])
def test_a_live_job_is_never_deleted_however_old(kind):
    JobFactory(**{kind: True}, created_at=ago(9_000 * DAY), finished_at=ago(9_000 * DAY))
    assert pruned() == []


def test_a_ready_job_is_never_deleted_however_old():
    JobFactory(created_at=ago(9_000 * DAY), run_at=ago(9_000 * DAY))
    assert pruned() == []


def test_a_job_that_was_requeued_is_live_again():
    requeue([JobFactory(dead=True, finished_at=ago(9_000 * DAY)).pk])
    assert pruned() == []


def test_fires_go_after_ninety_days():
    FireFactory(fired_at=ago(91 * DAY))
    kept = FireFactory(fired_at=ago(89 * DAY))
    assert pruned() == [("fire", None, 1)]
    assert Fire.objects.get() == kept


def test_counts_go_after_seven_days_and_the_sum_of_all_times_stays():
    total = CountFactory(minute=sql.TOTAL, acked=9)
    CountFactory(minute=ago(8 * DAY))
    kept = CountFactory(minute=ago(6 * DAY))
    assert pruned() == [("count", None, 1)]
    assert set(Count.objects.all()) == {total, kept}


def test_the_sum_of_a_queue_that_has_been_idle_for_so_long_goes_too():
    CountFactory(queue="gone", minute=sql.TOTAL)
    CountFactory(queue="gone", minute=ago(8 * DAY))
    pruned()
    assert not Count.objects.exists()


def test_each_batch_is_bounded():
    pile("done", 25)
    Job.objects.update(finished_at=ago(100))
    found = [b.count for b in finished(sql.engine(), "reports", "done", 60, limit=10)]
    assert found == [10, 10, 5, 0]


def test_every_queue_is_reached_however_many_there_are(monkeypatch):
    monkeypatch.setattr(reads.finished_queues, "__defaults__", ("", 3))
    for n in range(8):
        JobFactory(queue=f"customer-{n}", dead=True, finished_at=ago(31 * DAY))
    assert len(pruned()) == 8


@across_connections
def test_a_row_that_somebody_holds_is_left_for_the_next_time(only_on):
    only_on("postgresql", "mysql")
    mine = JobFactory(dead=True, finished_at=ago(31 * DAY))
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    with held(lambda: locking(mine)):
        assert pruned() == [("dead", "reports", 1)]
    assert pruned() == [("dead", "reports", 1)]


@across_connections
def test_a_claim_goes_on_while_a_batch_is_being_deleted(only_on):
    only_on("postgresql", "mysql")
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    JobFactory()

    with held(deleting):
        assert queue("reports").claim("w").ack()


@across_connections
def test_a_claim_goes_on_while_most_of_the_table_is_being_deleted(only_on):
    only_on("postgresql", "mysql")
    pile("dead", BATCH)
    Job.objects.update(finished_at=ago(31 * DAY))
    JobFactory.create_batch(20)

    with held(deleting_a_batch):
        assert len(queue("reports").claim_batch("w", 20)) == 20


@contextmanager
def deleting_a_batch():
    with transaction.atomic():
        assert next(batches(sql.engine())).count == BATCH
        yield


@contextmanager
def deleting():
    """A batch that has been deleted, in a transaction that has not ended."""
    with transaction.atomic():
        assert pruned() == [("dead", "reports", 1)]
        yield


# -- by the leader --------------------------------------------------------------------------------


class Passes(StopToken):
    """Stops after so many passes, and sleeps through none."""

    def __init__(self, count):
        super().__init__()
        self.left = count

    def wait(self, seconds):
        self.left -= 1
        if self.left <= 0:
            self.cancel()
        return self.is_cancelled


def lead(passes):
    scheduler = Scheduler()
    scheduler.lead()
    scheduler.fire_until(Passes(passes))


def test_the_leader_prunes():
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    lead(1)
    assert not Job.objects.exists()


def test_a_leader_that_always_has_more_to_fire_prunes_all_the_same(monkeypatch):
    monkeypatch.setattr("django_alkstore.scheduler.SCHEDULES_PER_TICK", 1)
    dead = JobFactory(dead=True, finished_at=ago(31 * DAY))
    ScheduleFactory.create_batch(3, overdue=True)
    lead(1)
    assert not Job.objects.filter(pk=dead.pk).exists()


def test_a_step_deletes_one_batch_and_then_pauses():
    pile("dead", BATCH + 50)
    Job.objects.update(finished_at=ago(31 * DAY))
    pruner = Pruner(sql.engine())
    assert (pruner.step(), pruner.step()) == (BATCH, 0)
    assert Job.objects.count() == 50


def test_a_pruner_with_nothing_left_rests():
    pruner = Pruner(sql.engine())
    before = pruner.next_at
    while pruner.next_at - before < 30:
        pruner.next_at = before
        pruner.step()
    assert pruner.next_at - before >= 60


def test_what_cannot_be_deleted_stops_no_leader(caplog):
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    ScheduleFactory(overdue=True)
    with connection.execute_wrapper(no_delete):
        lead(2)
    assert Job.objects.filter(schedule__isnull=False).count() == 1
    assert "old rows could not be deleted" in caplog.text


def no_delete(execute, text, params, many, context):
    if "DELETE " in text and "django_alkstore_job" in text:
        raise DatabaseError("permission denied")
    return execute(text, params, many, context)
