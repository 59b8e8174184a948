"""The record of throughput: what a worker did, and that it costs and risks nothing else."""

import time
from datetime import timedelta

import pytest
from django.db import Error, connection, transaction

from django_alkstore import PermanentError, RetryLater, outbox, queue, sql
from django_alkstore.counts import FLUSH_SECONDS, Tally
from django_alkstore.models import Count, Job

from .factories import JobFactory, ago
from .processes import across_connections, in_threads, until
from .workers import drain, working

pytestmark = pytest.mark.django_db

NONE = dict.fromkeys(sql.COUNTED, 0)


def counted(name="reports"):
    """The sums of all times, without what is 0."""
    row = Count.objects.get(queue=name, minute=sql.TOTAL)
    return {name: getattr(row, name) for name in sql.COUNTED if getattr(row, name)}


def test_a_worker_counts_what_it_claimed_and_acked():
    queue("reports").enqueue_many([1, 2, 3])
    drain(lambda job: None)
    assert counted() == {"claimed": 3, "acked": 3}


def test_a_retry_and_a_death_count_apart():
    def fail(job):
        raise PermanentError("no") if job.payload == "die" else RetryLater(600)

    queue("reports").enqueue_many(["die", "later", "later"])
    drain(fail)
    assert counted() == {"claimed": 3, "died": 1, "retried": 2}


def test_a_handler_that_acks_by_itself_counts_once():
    queue("reports").enqueue(1)
    drain(lambda job: job.ack())
    assert counted() == {"claimed": 1, "acked": 1}


def test_a_job_that_was_taken_back_counts_as_lost():
    def lose(job):
        Job.objects.filter(pk=job.id).update(claim_token=1)

    queue("reports").enqueue(1)
    drain(lose)
    assert counted() == {"claimed": 1, "lost": 1}


def test_jobs_that_a_sweep_finds_dead_count_as_died():
    JobFactory.create_batch(2, expired=True)
    JobFactory(lapsed=True, attempts=3)
    drain(lambda job: None)
    assert counted() == {"died": 3}


def test_each_queue_is_counted_for_itself():
    for name in ("reports", "mails"):
        queue(name).enqueue(1)
    drain(lambda job: None, names=("reports", "mails"))
    assert counted("mails") == {"claimed": 1, "acked": 1}


def test_counts_are_kept_by_the_minute_and_in_all():
    sql.engine().add_counts("reports", NONE | {"acked": 2})
    sql.engine().add_counts("reports", NONE | {"acked": 3})
    now = sql.engine().clock().replace(second=0, microsecond=0)
    rows = Count.objects.filter(minute__gte=now - timedelta(minutes=1))
    assert sum(rows.values_list("acked", flat=True)) == 5
    assert counted() == {"acked": 5}


def test_an_enqueue_writes_no_counts():
    outbox("receipts").enqueue(1)
    queue("reports").enqueue_many([1, 2])
    assert not Count.objects.exists()


def test_the_number_of_statements_of_a_flush_does_not_depend_on_that_of_jobs(statements):
    def cost(jobs):
        tally = Tally()
        for _ in range(jobs):
            tally.add("reports", "acked", 1)
        before = len(statements)
        tally.flush(sql.engine())
        return len(statements) - before

    assert cost(1_000) == cost(1)


def test_a_tally_without_figures_sends_nothing(statements):
    Tally().flush(sql.engine())
    assert len(statements) == 0


def test_a_tally_is_written_only_every_few_seconds():
    tally, now = Tally(), time.monotonic()
    assert not tally.is_due(now + 3_600)
    tally.add("reports", "acked", 1)
    assert not tally.is_due(now + FLUSH_SECONDS / 2)
    assert tally.is_due(now + FLUSH_SECONDS + 60)


def test_what_cannot_be_written_stays_for_the_next_time():
    tally = Tally()
    tally.add("mails", "acked", 1)
    tally.add("reports", "acked", 2**63)  # more than the column takes
    with pytest.raises((Error, OverflowError)), transaction.atomic():
        tally.flush(sql.engine())
    assert not Count.objects.exists()
    assert not tally.is_empty


def test_counts_that_cannot_be_stored_cost_no_job(caplog):
    queue("reports").enqueue_many([1, 2])
    with connection.execute_wrapper(no_counts):
        drain(lambda job: None)
    assert not Job.objects.exists() and not Count.objects.exists()
    assert "what was counted cannot be stored" in caplog.text


def no_counts(execute, text, params, many, context):
    if "INTO django_alkstore_count" in text:
        raise Error("the disk is full")
    return execute(text, params, many, context)


@across_connections
def test_a_worker_that_goes_on_writes_its_counts_meanwhile(monkeypatch):
    monkeypatch.setattr("django_alkstore.counts.FLUSH_SECONDS", 0.0)
    with working(lambda job: None):
        queue("reports").enqueue(1)
        until(lambda: Count.objects.filter(minute=sql.TOTAL, acked=1).exists())


@across_connections
def test_two_workers_add_to_one_row():
    def add():
        for _ in range(5):
            tally = Tally()
            for name in ("mails", "reports"):
                tally.add(name, "acked", 1)
            tally.flush(sql.engine())

    in_threads(add, add)
    assert counted("reports") == counted("mails") == {"acked": 10}


def test_names_of_counts_compare_byte_for_byte():
    for name in ("Reports", "reports"):
        sql.engine().add_counts(name, NONE | {"acked": 1})
    assert counted("Reports") == counted("reports") == {"acked": 1}


def test_an_old_count_is_not_added_to():
    Count.objects.create(queue="reports", minute=ago(3_600), acked=7)
    sql.engine().add_counts("reports", NONE | {"acked": 1})
    assert Count.objects.get(acked=7)
