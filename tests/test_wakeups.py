import os
import resource
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest
from django.db import Error, connection, connections, transaction

from django_alkstore import StopToken, queue, wakeups
from django_alkstore.models import Job
from django_alkstore.operations import requeue, run_now
from django_alkstore.schedules import fire_now

from .factories import JobFactory, ScheduleFactory, ago
from .processes import (
    PATIENCE,
    URL,
    across_connections,
    bare_url,
    in_threads,
    is_pooled,
    until,
)
from .workers import made, working

pytestmark = across_connections

FOREVER = 1_000.0


@pytest.fixture(autouse=True)
def nothing_announced():
    """As in a process that has announced nothing yet."""
    wakeups._announced.clear()


@pytest.fixture
def heard_of(only_on):
    """Skip where a commit is not heard of, and workers poll."""
    only_on("sqlite", "postgresql")
    if is_pooled():
        pytest.skip("a pooler passes no notifications on")


@pytest.fixture
def waiter():
    """An armed waiter for the queue "reports", on this thread's connection."""
    waiter = wakeups.waiter("default", ["reports"])
    waiter.arm()
    waiter.arm()  # the first one began to listen
    return waiter


def elsewhere(call):
    """Make ``call`` on another connection; its result."""
    return in_threads(call)[0]


@contextmanager
def payloads_run(poll_interval=FOREVER):
    """A worker over "reports" in a thread of its own; the payloads it was handed."""
    payloads = []
    with working(lambda job: payloads.append(job.payload), poll_interval=poll_interval):
        yield payloads


# -- news -----------------------------------------------------------------------------------------


def test_a_commit_between_the_look_and_the_wait_ends_the_wait(waiter, heard_of):
    elsewhere(lambda: queue("reports").enqueue("x"))
    assert waiter.wait(StopToken(), FOREVER) is True


def test_a_commit_ends_a_wait_that_has_begun(waiter, heard_of):
    stop = StopToken()

    def enqueue_until_noticed():
        while not stop.wait(0.15):
            queue("reports").enqueue("x")

    thread = threading.Thread(target=lambda: (enqueue_until_noticed(), connections.close_all()))
    thread.start()
    try:
        assert waiter.wait(StopToken(), FOREVER) is True
    finally:
        stop.cancel()
        thread.join()


def test_what_was_committed_before_the_look_is_no_news(waiter, heard_of):
    elsewhere(lambda: queue("reports").enqueue("x"))
    waiter.arm()
    connection.cursor().execute("SELECT 1")  # brings what the server had to say
    waiter.arm()
    assert waiter.wait(StopToken(), 0.1) is False


def test_a_job_of_another_queue_is_no_news(waiter, only_on):
    only_on("postgresql")
    elsewhere(lambda: queue("receipts").enqueue("x"))
    assert waiter.wait(StopToken(), 0.3) is False


def test_an_enqueue_in_a_transaction_is_news_with_its_commit(waiter, heard_of):
    def enqueue():
        with transaction.atomic():
            queue("reports").enqueue_tx("x")
            if connection.vendor == "postgresql":
                assert elsewhere(lambda: waiter.news) is False

    elsewhere(enqueue)
    assert waiter.wait(StopToken(), FOREVER) is True


@pytest.mark.parametrize(
    ("make", "act"),
    [
        (lambda: JobFactory(dead=True), lambda job: requeue([job.pk])),
        (lambda: JobFactory(scheduled=True), lambda job: run_now([job.pk])),
        (ScheduleFactory, lambda row: fire_now(row.name)),
    ],
    ids=["requeue", "run now", "fire now"],
)
def test_what_a_person_makes_ready_is_news(make, act, waiter, heard_of):
    row = make()
    waiter.arm()
    elsewhere(lambda: act(row))
    assert waiter.wait(StopToken(), PATIENCE) is True


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda: queue("reports").enqueue("x"),
        lambda: queue("reports").enqueue("x", delay=0.2),
        lambda: queue("reports").enqueue_many(["x"] * 3),
    ],
    ids=["one", "delayed", "many"],
)
def test_a_worker_that_would_poll_in_an_hour_runs_what_comes_at_once(enqueue, heard_of):
    with payloads_run() as payloads:
        for _ in range(3):
            enqueue()
            until(lambda: not Job.objects.exists())
    assert set(payloads) == {"x"}


def test_a_burst_of_enqueues_is_seen_though_one_was_announced(heard_of):
    with payloads_run() as payloads:
        for n in range(20):
            queue("reports").enqueue(n)
        until(lambda: len(payloads) == 20)


def test_polling_finds_what_no_news_tells_of():
    with payloads_run(poll_interval=0.05) as payloads:
        queue("reports").enqueue("first")
        until(lambda: payloads == ["first"])
        elsewhere(lambda: JobFactory(payload="by hand"))
        until(lambda: payloads == ["first", "by hand"])


def test_a_rolled_back_announcement_costs_no_job(only_on):
    with payloads_run(poll_interval=0.5) as payloads:
        with transaction.atomic():
            queue("reports").enqueue_tx("never")
            transaction.set_rollback(True)
        queue("reports").enqueue("hello")
        until(lambda: payloads == ["hello"])


# -- the ends of a wait ---------------------------------------------------------------------------


def test_the_wait_ends_when_a_job_is_due():
    queue("reports").enqueue("delayed", delay=0.5)
    JobFactory(payload="lapsed", lapsed=True, due_at=ago(-0.5))
    with payloads_run() as payloads:
        until(lambda: sorted(payloads) == ["delayed", "lapsed"])


class Polls(StopToken):
    """Sleeps through none of the waits it is asked for, and stops after so many: what they were to
    take, and how many statements had been sent at each."""

    def __init__(self, count, statements):
        super().__init__()
        self.count, self.statements = count, statements
        self.seconds, self.sent = [], []

    def wait(self, seconds):
        self.seconds.append(seconds)
        self.sent.append(len(self.statements))
        if len(self.seconds) == self.count:
            self.cancel()
        return self.is_cancelled


def idle(statements, settings, **limits):
    """What a worker did that had nothing to do for 50 polls."""
    settings.ALKSTORE = {"NOTIFY": False}
    polls = Polls(50, statements)
    made(lambda job: pytest.fail(f"{job} was run"), stop=polls, **limits).run()
    return polls


def test_an_idle_worker_sends_one_read_a_poll_whatever_rows_there_are(settings, statements):
    JobFactory(dead=True), JobFactory(done=True), JobFactory(queue="nobodys")
    JobFactory(scheduled=True, run_at=ago(-9_000)), JobFactory(running=True, due_at=ago(-9_000))
    JobFactory(expired=True), JobFactory(lapsed=True, attempts=3)
    polls = idle(statements, settings)
    assert {after - before for before, after in pairwise(polls.sent)} == {1}
    between = [query["sql"] for query in statements][polls.sent[0] : polls.sent[-1]]
    assert not [text for text in between if not text.startswith("SELECT")]


def test_an_idle_worker_sleeps_for_as_long_as_it_may(settings, statements):
    assert idle(statements, settings, poll_interval=45).seconds[-1] == 45


@pytest.mark.parametrize("state", ["scheduled", "running"])
def test_an_idle_worker_sleeps_no_longer_than_until_a_row_is_due(settings, statements, state):
    job = JobFactory(**{state: True}, due_at=ago(-40))
    due_in = (job.due_at - ago()).total_seconds()
    assert due_in - 30 < idle(statements, settings, poll_interval=FOREVER).seconds[-1] <= due_in


def test_an_idle_worker_waits_for_no_instant_that_no_datetime_can_hold(
    settings, statements, only_on
):
    only_on("postgresql", "sqlite")
    job = JobFactory(scheduled=True)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_alkstore_job SET due_at = 'infinity' WHERE id = {job.pk}")
    assert idle(statements, settings, poll_interval=45).seconds[-1] == 45


def test_a_job_that_lost_its_due_at_is_found_without_any_news(monkeypatch):
    monkeypatch.setattr("django_alkstore.workers.WATCH_SECONDS", 0.2)
    monkeypatch.setattr("django_alkstore.queues.REPAIR_SECONDS", 0)
    with payloads_run() as payloads:
        queue("reports").enqueue("first")
        until(lambda: payloads == ["first"])
        JobFactory(running=True, due_at=None, payload="repaired")
        until(lambda: payloads == ["first", "repaired"])


def test_a_stop_ends_the_wait(waiter):
    stop = StopToken()
    threading.Timer(0.05, stop.cancel).start()
    assert waiter.wait(stop, FOREVER) is False
    assert waiter.wait(stop, FOREVER) is False


def test_a_wait_without_news_ends_by_its_time(waiter):
    assert waiter.wait(StopToken(), 0.05) is False
    assert waiter.wait(StopToken(), 0) is False


def lose_the_session():
    """End the session of this thread's connection, behind Django's back."""
    driver = connection.connection
    if connection.vendor == "sqlite":
        driver.close()
        return
    pid = driver.info.backend_pid

    def end():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])

    elsewhere(end)


def test_a_session_lost_in_the_wait_is_an_error_of_djangos_and_the_next_hears_again(
    waiter, heard_of
):
    lose_the_session()
    with pytest.raises(Error):
        waiter.wait(StopToken(), FOREVER)
    with suppress(Error):
        connection.close()
    waiter.arm()
    elsewhere(lambda: queue("reports").enqueue("x"))
    assert waiter.wait(StopToken(), FOREVER) is True


# -- announcing -----------------------------------------------------------------------------------


def announced(statements):
    return [query["sql"] for query in statements if "pg_notify" in query["sql"]]


def test_a_queue_is_announced_once_in_a_tenth_of_a_second(statements, only_on):
    only_on("postgresql")
    begun = time.monotonic()
    for _ in range(50):
        queue("reports").enqueue("x")
    took = time.monotonic() - begun
    assert 1 <= len(announced(statements)) <= took / wakeups.NOTIFY_SECONDS + 1
    assert Job.objects.count() == 50


def test_every_queue_is_announced_for_itself(statements, only_on):
    only_on("postgresql")
    for name in ("reports", "receipts"):
        queue(name).enqueue("x")
    assert len(announced(statements)) == 2


def test_with_notify_off_nothing_is_announced_and_workers_poll(statements, settings):
    settings.ALKSTORE = {"NOTIFY": False}
    queue("reports").enqueue("x")
    waiter = wakeups.waiter("default", ["reports"])
    waiter.arm()
    elsewhere(lambda: queue("reports").enqueue("x"))
    assert waiter.wait(StopToken(), 0.05) is False
    assert not [query for query in statements if "pg_notify" in query["sql"]]
    assert not [query for query in statements if "LISTEN" in query["sql"]]


def test_jobs_that_are_requeued_are_announced_by_the_statement_that_changes_them(
    statements, only_on
):
    only_on("postgresql")
    ids = [JobFactory(dead=True, queue=name).pk for name in ("reports", "receipts", "mails")]
    before = len(statements)
    assert requeue(ids).ids == ids
    assert len(announced(statements)) == len(statements) - before == 1


def test_names_without_end_are_not_kept_for_ever(only_on, monkeypatch):
    only_on("postgresql")
    monkeypatch.setattr(wakeups, "NAMES_KEPT", 50)
    for n in range(200):
        queue(f"day-{n}").enqueue("x")
    assert len(wakeups._announced) <= 50


# -- servers and drivers --------------------------------------------------------------------------


def test_a_server_that_cannot_listen_is_polled_and_that_is_said_once(only_on, own_sessions, caplog):
    only_on("postgresql")

    def refuse(execute, sql, params, many, context):
        return execute("LISTEN 'no channel'" if "LISTEN" in sql else sql, params, many, context)

    waiter = wakeups.waiter("default", ["reports"])
    with connection.execute_wrapper(refuse):
        waiter.arm()
        waiter.arm()
    assert waiter.wait(StopToken(), 0.05) is False
    assert caplog.text.count("polling for jobs in the database 'default': it cannot LISTEN") == 1


def test_a_wait_takes_a_file_number_beyond_what_select_takes(only_on):
    only_on("postgresql")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        waiter = wakeups.waiter("default", ["reports"])
        waiter.arm()
        assert connection.connection.fileno() > 1_023
        assert waiter.wait(StopToken(), 0.01) is False
    finally:
        connection.close()
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


WITH_PSYCOPG2 = """
import sys
sys.modules["psycopg"] = None  # so that Django takes the older driver
import django
django.setup()
from django.db import connection
from django_alkstore import StopToken, queue, wakeups
from django_alkstore.holds import Source
from django_alkstore.workers import Limits, Worker
assert connection.Database.__name__ == "psycopg2", connection.Database
stop = StopToken()
def run(job):
    print("ran", job.payload, flush=True)
    if job.payload == "last":
        stop.cancel()
worker = Worker([Source(queue("reports"), run)], "w", stop, Limits(1000.0))
worker.run()
listener = worker.waiter.connection
worker.waiter.arm()
with connection.cursor() as cursor:
    cursor.execute("NOTIFY django_alkstore, 'reports'")
print("keeps", isinstance(listener.notifies, list), "news", worker.waiter.news, flush=True)
"""


def test_psycopg2_listens_too_and_keeps_no_notifications(start, only_on, own_sessions):
    only_on("postgresql")
    pytest.importorskip("psycopg2")
    plain = {URL: bare_url()}  # it knows not all the options of the other
    process = start(argv=[sys.executable, "-c", WITH_PSYCOPG2], **plain)
    for payload in ("first", "second", "last"):
        queue("reports").enqueue(payload)
        process.until_says(f"ran {payload}")
    assert process.wait() == 0
    assert "keeps False news True" in process.text
