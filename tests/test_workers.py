import logging
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import Error, connection, transaction
from django.utils import timezone

from django_alkstore import PermanentError, RetryLater, StopToken, handler, outbox, queue, registry
from django_alkstore.holds import Hold, Item, Source
from django_alkstore.management.commands import run_outbox, run_queue
from django_alkstore.models import Job
from django_alkstore.queues import ClaimedJob
from django_alkstore.workers import fitting_batch
from testproject.shop.models import Order

from .factories import JobFactory, OrderFactory, ago
from .processes import PATIENCE, across_connections, held, until
from .workers import drain, made, working

by_one_and_by_four = pytest.mark.parametrize("concurrency", [1, 4])


def no_jobs():
    return not Job.objects.exists()


class Gate:
    """A handler that, for a payload of "wait", is held until the gate is opened."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()
        self.runs = []

    def __call__(self, job):
        self.runs.append((job.payload, job.attempts))
        if job.payload == "wait":
            self.entered.set()
            assert self.opened.wait(2 * PATIENCE)  # the test gives up first

    def payloads(self):
        return [payload for payload, _ in self.runs]


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


def fill(quick=15):
    """Enqueue so many quick jobs that the worker comes to claim many at once, then one that is
    held, and ten behind it, in one batch; the ids of the ten."""
    queue("reports").enqueue_many(["quick"] * quick)
    queue("reports").enqueue("wait")
    return queue("reports").enqueue_many(["behind"] * 10)


# -- running jobs ---------------------------------------------------------------------------------


@across_connections
@by_one_and_by_four
@pytest.mark.parametrize("batch_size", [1, 128])
def test_each_job_runs_once_and_is_acked(concurrency, batch_size):
    queue("reports").enqueue_many(range(100))
    runs = []
    with working(
        lambda job: runs.append(job.payload), concurrency=concurrency, batch_size=batch_size
    ):
        until(no_jobs)
    assert Counter(runs) == Counter(range(100))


@across_connections
def test_jobs_run_in_the_order_of_their_priority():
    for priority in (0, 9, 5):
        queue("reports").enqueue(priority, priority=priority)
    runs = []
    drain(lambda job: runs.append(job.payload))
    assert runs == [9, 5, 0]


@across_connections
def test_concurrency_is_how_many_run_at_once():
    queue("reports").enqueue_many(range(8))
    together = threading.Barrier(4)
    drain(lambda job: together.wait(PATIENCE), concurrency=4)
    assert no_jobs()


@across_connections
@by_one_and_by_four
def test_one_runs_in_the_main_thread_and_more_in_threads_of_the_workers_own(concurrency):
    queue("reports").enqueue("x")
    threads = []
    drain(lambda job: threads.append(threading.current_thread()), concurrency=concurrency)
    assert [thread is threading.current_thread() for thread in threads] == [concurrency == 1]


@across_connections
def test_with_a_batch_of_one_each_job_is_acked_before_the_next_starts():
    queue("reports").enqueue_many(range(6))
    rows = []
    drain(lambda job: rows.append(Job.objects.count()), batch_size=1)
    assert rows == [6, 5, 4, 3, 2, 1]


@across_connections
def test_an_ended_job_is_acked_while_the_next_of_its_batch_still_runs(gate):
    fill(quick=20)
    with working(gate):
        assert gate.entered.wait(PATIENCE)
        until(lambda: Job.objects.count() <= 11)  # the one that runs, and those behind it
        gate.opened.set()
        until(no_jobs)


# -- what a handler may come to -------------------------------------------------------------------


class Odd(BaseException):
    def __str__(self):
        raise SystemExit("even its text")


ENDS = {
    "exception": (RuntimeError("boom"), "scheduled", "boom"),
    "permanent": (PermanentError("no such account"), "dead", "no such account"),
    "retry later": (RetryLater(60, "busy"), "scheduled", "busy"),
    "a delay that is none": (RetryLater("soon", "when?"), "scheduled", "when?"),
    "sys.exit": (SystemExit(0), "scheduled", "0"),
    "keyboard": (KeyboardInterrupt("ctrl-c"), "scheduled", "ctrl-c"),
    "generator exit": (GeneratorExit("gone"), "scheduled", "gone"),
    "without a text": (Odd(), "scheduled", "Odd"),
}


@across_connections
@by_one_and_by_four
def test_whatever_a_handler_raises_is_written_down_and_the_worker_goes_on(concurrency):
    queue("reports").enqueue_many(list(ENDS), priority=1)
    good = queue("reports").enqueue_many(["good"] * 9)

    def run(job):
        if job.payload != "good":
            raise ENDS[job.payload][0]

    with working(run, concurrency=concurrency):
        until(lambda: not Job.objects.filter(id__in=good).exists())
        until(lambda: not Job.objects.filter(state="running").exists())
    for job in Job.objects.all():
        assert (job.state, job.last_error) == ENDS[job.payload][1:], job.payload
        assert job.attempts == 1
    assert Job.objects.count() == len(ENDS)


@across_connections
@by_one_and_by_four
def test_a_retry_without_delay_runs_at_once(concurrency):
    queue("reports").enqueue("x")
    attempts = []

    def run(job):
        attempts.append(job.attempts)
        if job.attempts < 3:
            raise RetryLater(0)

    drain(run, concurrency=concurrency)
    assert attempts == [1, 2, 3]
    assert no_jobs()


@across_connections
def test_a_payload_that_is_no_json_dies_of_its_attempts_and_the_others_run(only_on):
    only_on("sqlite")  # the servers refuse such a row
    bad = queue("reports").enqueue("x", backoff=0.01)
    queue("reports").enqueue_many(["good"] * 3)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute(f"UPDATE django_alkstore_job SET payload = '{{bad' WHERE id = {bad}")
        cursor.execute("PRAGMA ignore_check_constraints = OFF")
    runs = []
    with working(lambda job: runs.append(job.payload)):
        until(lambda: Job.objects.defer("payload").filter(id=bad, state="dead").exists())
    assert runs == ["good"] * 3
    assert Job.objects.defer("payload").get().attempts == 3


@across_connections
def test_a_failure_that_cannot_be_stored_stands_in_nobodys_way(only_on, caplog):
    only_on("sqlite")
    queue("reports").enqueue("fail", priority=1, visibility_timeout=60)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON django_alkstore_job"
            " WHEN NEW.last_error = 'boom' BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    queue("reports").enqueue_many(["fail too", *range(3)])

    def run(job):
        if job.payload in ("fail", "fail too"):
            raise RuntimeError("boom" if job.payload == "fail" else "bang")

    try:
        with working(run):
            until(lambda: Job.objects.filter(last_error="bang").exists())
            until(lambda: Job.objects.count() == 2)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse")
    assert "cannot be stored" in caplog.text


# -- claims ---------------------------------------------------------------------------------------


def take_away(job_id):
    """What another worker's claim does to the row, once ours has lapsed."""
    assert Job.objects.filter(id=job_id, state="running").update(
        claim_token=1, worker_id="another", due_at=ago(-60)
    )


@across_connections
@by_one_and_by_four
def test_an_ack_that_matched_no_claim_is_told_as_lost(gate, caplog, concurrency):
    job_id = queue("reports").enqueue("wait")
    with working(gate, concurrency=concurrency):
        assert gate.entered.wait(PATIENCE)
        take_away(job_id)
        gate.opened.set()
        until(lambda: "1 of 1 acks" in caplog.text)
    assert Job.objects.get().claim_token == 1


@across_connections
def test_a_job_that_its_own_handler_settled_is_not_told_as_lost(caplog):
    for verb in (ClaimedJob.ack, ClaimedJob.fail, ClaimedJob.retry, ClaimedJob.release):
        queue("reports").enqueue(verb.__name__)
        made(lambda job: getattr(job, job.payload)(), max_jobs=1).burst()
    assert Counter(Job.objects.values_list("state", flat=True)) == Counter(
        dead=1, scheduled=1, ready=1
    )
    assert "taken back" not in caplog.text


@across_connections
def test_a_worker_that_claims_a_job_again_while_it_still_runs_goes_on(gate):
    job_id = queue("reports").enqueue("wait")
    second = threading.Event()

    def run(job):
        if job.payload == "wait" and job.attempts == 2:
            second.set()
        else:
            gate(job)

    with working(run, concurrency=2):
        assert gate.entered.wait(PATIENCE)
        Job.objects.filter(id=job_id).update(due_at=ago(1))
        assert second.wait(PATIENCE)
        until(no_jobs)
        gate.opened.set()
        queue("reports").enqueue_many(["more"] * 5)
        until(no_jobs)
    assert sorted(gate.payloads()) == ["more"] * 5 + ["wait"]


@across_connections
def test_what_waits_behind_a_slow_job_is_given_back_with_its_attempt(gate):
    behind = fill()
    Job.objects.update(visibility_timeout=1)
    with working(gate, heartbeat=True):
        assert gate.entered.wait(PATIENCE)
        rows = Job.objects.filter(id__in=behind, state="ready", attempts=0)
        until(lambda: rows.count() == 10)
        assert len(queue("reports").claim_batch("another", 10)) == 10
        gate.opened.set()
        until(lambda: Job.objects.count() == 10)
    assert "behind" not in gate.payloads()


def claimed_here():
    queue("reports").enqueue("x")
    return queue("reports").claim("w")


@pytest.mark.django_db
def test_a_job_that_has_waited_beyond_half_of_its_claim_is_not_started():
    hold, source = Hold(StopToken()), Source(queue("reports"), print)
    late = Item(claimed_here(), source, time.monotonic() - 1_000)
    fresh = Item(claimed_here(), source, time.monotonic())
    hold.add([late, fresh])
    assert hold.start() is fresh
    assert hold.start() is None
    assert hold.to_give_back() == [late]


@pytest.mark.django_db
def test_a_claim_that_is_over_at_once_does_not_keep_its_job_from_ever_starting():
    JobFactory(visibility_timeout=1e-9)
    hold = Hold(StopToken())
    item = Item(queue("reports").claim("w"), Source(queue("reports"), print), time.monotonic())
    hold.add([item])
    assert hold.start() is item


@pytest.mark.parametrize(
    ("batch", "was_full", "seconds", "next_batch"),
    [
        (8, True, 0.01, 16),  # quick, and there was more
        (8, False, 0.01, 8),  # there was no more
        (8, True, 0.3, 8),  # long enough
        (128, True, 38.4, 1),  # 0.3 s each
        (128, False, 1.28, 10),
        (1, True, 3600, 1),
    ],
)
def test_a_batch_is_what_runs_in_a_moment(batch, was_full, seconds, next_batch):
    assert fitting_batch(batch, was_full, seconds) == next_batch


@across_connections
def test_a_worker_whose_threads_are_all_busy_claims_nothing(gate, caplog):
    waiting = queue("reports").enqueue_many(["wait"] * 4)
    with working(gate, concurrency=2):
        until(lambda: len(gate.runs) == 2)
        taken = []
        until(lambda: taken.extend(queue("reports").claim_batch("another", 4)) or len(taken) == 2)
        gate.opened.set()
        until(lambda: Job.objects.count() == 2)
    assert [job.id for job in taken] == waiting[2:]
    assert "gave back" not in caplog.text


# -- several queues -------------------------------------------------------------------------------


@across_connections
@by_one_and_by_four
def test_a_queue_of_slow_jobs_does_not_starve_another(concurrency):
    queue("slow").enqueue_many(range(8 * concurrency))
    queue("fast").enqueue_many(range(40))
    order = []

    def run(job):
        order.append(job.queue)
        if job.queue == "slow":
            time.sleep(0.15)

    drain(run, ["slow", "fast"], concurrency=concurrency)
    before_the_last_fast = order[: len(order) - order[::-1].index("fast")]
    assert before_the_last_fast.count("slow") < 8 * concurrency
    assert Counter(order) == {"slow": 8 * concurrency, "fast": 40}


@across_connections
def test_a_queue_that_is_never_empty_does_not_starve_another():
    queue("endless").enqueue("x")
    queue("other").enqueue("x")
    done = threading.Event()

    def run(job):
        if job.queue == "endless":
            queue("endless").enqueue("x")
        else:
            done.set()

    with working(run, ["endless", "other"]):
        assert done.wait(PATIENCE)


@across_connections
def test_the_rows_of_a_queue_without_a_source_stay():
    JobFactory(queue="nobodys")
    queue("reports").enqueue("x")
    drain(lambda job: None)
    assert list(Job.objects.values_list("queue", "state", "attempts")) == [("nobodys", "ready", 0)]


# -- stopping -------------------------------------------------------------------------------------


@across_connections
@by_one_and_by_four
def test_a_stop_that_lands_in_the_claim_starts_nothing_of_it(concurrency):
    queue("reports").enqueue_many(range(5))
    stop, runs = StopToken(), []

    def stop_at_the_claim(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if "SET state = 'running'" in sql:
            stop.cancel()
        return result

    with connection.execute_wrapper(stop_at_the_claim):
        made(runs.append, stop=stop, concurrency=concurrency).run()
    assert stop.is_cancelled
    assert runs == []
    assert list(Job.objects.values_list("state", "attempts")) == [("ready", 0)] * 5


@across_connections
def test_a_stop_gives_the_unstarted_back_at_once_and_lets_the_running_end(gate):
    behind = fill()
    with working(gate) as stop:
        assert gate.entered.wait(PATIENCE)
        until(lambda: Job.objects.filter(id__in=behind, state="running").count() == 10)
        stop.cancel()
        until(lambda: Job.objects.filter(id__in=behind, state="ready", attempts=0).count() == 10)
        assert Job.objects.filter(state="running").count() == 1
        gate.opened.set()
    assert "behind" not in gate.payloads()
    assert Job.objects.count() == 10


@across_connections
@by_one_and_by_four
def test_no_more_than_max_jobs_are_taken(concurrency):
    queue("reports").enqueue_many(range(30))
    runs = []
    made(lambda job: runs.append(job.id), concurrency=concurrency, max_jobs=10).run()
    assert (len(runs), Job.objects.filter(state="ready", attempts=0).count()) == (10, 20)


@across_connections
@by_one_and_by_four
def test_a_burst_ends_when_no_job_is_ready(concurrency):
    delayed = queue("reports").enqueue("x", delay=60)
    queue("reports").enqueue_many(range(50))

    def fail_once(job):
        if job.attempts == 1 and job.payload % 10 == 0:
            raise RetryLater(0)

    drain(fail_once, concurrency=concurrency)
    assert Job.objects.get().id == delayed


@across_connections
def test_a_burst_does_not_wait_for_a_row_that_somebody_holds(only_on):
    only_on("postgresql", "mysql")
    locked = queue("reports").enqueue("x", priority=1)
    queue("reports").enqueue("x")

    @contextmanager
    def hold_it():
        with transaction.atomic():
            Job.objects.select_for_update().get(id=locked)
            yield

    with held(hold_it):
        drain(lambda job: None)
        assert Job.objects.get().id == locked


@across_connections
def test_a_worker_waits_for_a_row_that_somebody_holds_and_serves_the_others(only_on):
    only_on("postgresql", "mysql")
    locked = queue("reports").enqueue("x")

    @contextmanager
    def hold_it():
        with transaction.atomic():
            Job.objects.select_for_update().get(id=locked)
            yield

    runs = []
    with ExitStack() as to_the_end:
        with held(hold_it):
            to_the_end.enter_context(working(lambda job: runs.append(job.payload)))
            queue("reports").enqueue("y")
            until(lambda: runs == ["y"])
        until(no_jobs)
    assert runs == ["y", "x"]


@across_connections
def test_an_error_of_our_own_ends_the_worker_but_what_ran_is_acked(gate, monkeypatch):
    monkeypatch.setattr("django_alkstore.workers.WATCH_SECONDS", 0)

    def refuse_once_it_runs():
        if gate.entered.is_set():
            gate.opened.set()
            raise LookupError("no error of the database")

    queue("reports").enqueue("wait")
    worker = made(gate, concurrency=2)
    worker.watch = refuse_once_it_runs
    with pytest.raises(LookupError):
        worker.run()
    assert no_jobs()


# -- heartbeats -----------------------------------------------------------------------------------


def compute(done):
    while not done.is_set():
        sum(range(1000))


def wait_in_sql(done):
    naps = {"postgresql": "SELECT pg_sleep(0.2)", "mysql": "SELECT SLEEP(0.2)"}
    count = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
    while not done.is_set():
        with connection.cursor() as cursor:
            cursor.execute(naps.get(connection.vendor, f"{count} SELECT MAX(i) FROM n"))
            cursor.fetchall()


def wait_in_a_transaction(done):
    with transaction.atomic():
        OrderFactory()
        done.wait(PATIENCE)


def lapse():
    """Wait until the first claim of the one job, and a next one as long, would have lapsed."""
    job = until(lambda: Job.objects.filter(state="running").first())
    end = job.due_at + timedelta(seconds=job.visibility_timeout)
    until(lambda: timezone.now() > end)


@across_connections
@by_one_and_by_four
@pytest.mark.parametrize("busy", [compute, wait_in_sql, wait_in_a_transaction])
def test_a_heartbeat_holds_the_claim_whatever_the_handler_does(busy, concurrency, only_on):
    if busy is wait_in_a_transaction:
        only_on("postgresql", "mysql")  # on SQLite that may be the one write lock
    queue("reports").enqueue("x", visibility_timeout=1)
    done, runs = threading.Event(), []

    def run(job):
        runs.append(job.attempts)
        busy(done)

    with working(run, heartbeat=True, concurrency=concurrency):
        try:
            lapse()
            assert queue("reports").claim("another") is None
        finally:
            done.set()
        until(no_jobs)
    assert runs == [1]


@across_connections
def test_without_a_heartbeat_a_handler_that_outlives_its_claim_runs_beside_the_next(gate):
    queue("reports").enqueue("wait", visibility_timeout=0.5)
    with working(gate):
        assert gate.entered.wait(PATIENCE)
        lapse()
        taken = queue("reports").claim("another")
        assert (taken.worker_id, taken.attempts) == ("another", 2)
        gate.opened.set()
    assert taken.ack() is True


@across_connections
@by_one_and_by_four
def test_a_handler_sees_that_its_claim_is_lost_and_its_ack_is_refused(caplog, concurrency):
    job_id = queue("reports").enqueue("x", visibility_timeout=0.6)
    entered, seen = threading.Event(), []

    def run(job):
        entered.set()
        until(lambda: job.lost)
        seen.append(job.ack())

    with working(run, heartbeat=True, concurrency=concurrency):
        assert entered.wait(PATIENCE)
        take_away(job_id)
        until(lambda: seen)
    assert seen == [False]
    assert Job.objects.get().worker_id == "another"
    assert "still runs, but its claim has been taken back" in caplog.text


@across_connections
def test_a_handler_that_locked_its_own_row_does_not_keep_others_from_their_ack(only_on, gate):
    only_on("postgresql", "mysql")
    queue("reports").enqueue("lock", visibility_timeout=1, priority=1)

    def run(job):
        if job.payload == "lock":
            with transaction.atomic():
                assert job.heartbeat()
                gate.entered.set()
                assert gate.opened.wait(PATIENCE)

    with working(run, heartbeat=True, concurrency=2) as stop:
        assert gate.entered.wait(PATIENCE)
        lapse()
        others = queue("reports").enqueue_many(["x"] * 3)
        until(lambda: not Job.objects.filter(id__in=others).exists())
        assert not stop.is_cancelled
        gate.opened.set()
        until(no_jobs)


# -- a database that fails ------------------------------------------------------------------------


@contextmanager
def without_the_job_table():
    """An outage: every statement about jobs fails until the block ends."""

    def rename(old, new):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("django_alkstore_job", "django_alkstore_job_away")
    try:
        yield
    finally:
        rename("django_alkstore_job_away", "django_alkstore_job")


@across_connections
@by_one_and_by_four
@pytest.mark.parametrize("stopped", [False, True], ids=["working", "stopping"])
def test_an_outcome_is_written_after_the_outage_and_the_job_not_run_again(
    gate, caplog, concurrency, stopped
):
    queue("reports").enqueue("wait")
    with working(gate, concurrency=concurrency) as stop:
        assert gate.entered.wait(PATIENCE)
        with without_the_job_table():
            if stopped:
                stop.cancel()
            gate.opened.set()
            until(lambda: "failed; trying again" in caplog.text)
        until(no_jobs)
    assert gate.runs == [("wait", 1)]


@across_connections
def test_what_could_not_be_given_back_in_an_outage_is_given_back_after_it(gate, caplog):
    behind = fill()
    with working(gate) as stop:
        assert gate.entered.wait(PATIENCE)
        until(lambda: Job.objects.filter(id__in=behind, state="running").count() == 10)
        with without_the_job_table():
            stop.cancel()
            until(lambda: "failed; trying again" in caplog.text)
        until(lambda: Job.objects.filter(id__in=behind, state="ready", attempts=0).count() == 10)
        gate.opened.set()


@across_connections
def test_a_heartbeat_that_failed_is_tried_again_while_the_claim_holds(gate, caplog):
    queue("reports").enqueue("wait", visibility_timeout=6)
    with working(gate, heartbeat=True):
        assert gate.entered.wait(PATIENCE)
        first = Job.objects.get().due_at
        with without_the_job_table():
            until(lambda: "no heartbeat for" in caplog.text)
        until(lambda: Job.objects.get().due_at > first)
        assert timezone.now() < first
        gate.opened.set()
        until(no_jobs)
    assert gate.runs == [("wait", 1)]


@across_connections
def test_a_burst_ends_with_the_error_of_its_database():
    queue("reports").enqueue("x")
    with without_the_job_table(), pytest.raises(Error):
        drain(print)


@across_connections
def test_the_waits_of_an_outage_do_not_flood_the_log(gate, caplog):
    queue("reports").enqueue("wait")
    with working(gate) as stop:
        assert gate.entered.wait(PATIENCE)
        with without_the_job_table():
            stop.cancel()
            gate.opened.set()
            until(lambda: caplog.text.count("failed; trying again") >= 3)
            stamps = [r.created for r in caplog.records if "failed; trying" in r.getMessage()]
            assert len(stamps) <= (stamps[-1] - stamps[0]) / 0.05 + 2
        until(no_jobs)


# -- what it costs --------------------------------------------------------------------------------


def sessions():
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = CURRENT_DATABASE()"
            )
        else:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()"
            )
        return cursor.fetchone()[0]


@across_connections
def test_connections_are_one_a_thread_and_the_keepers_and_gone_afterwards(
    only_on, own_sessions, gate
):
    only_on("postgresql", "mysql")
    until(lambda: sessions() == 1)
    queue("reports").enqueue_many([*range(100), *["wait"] * 3])

    def run(job):
        OrderFactory()
        gate(job)

    with working(run, concurrency=3):
        until(lambda: gate.payloads().count("wait") == 3)
        assert 1 + 3 < sessions() <= 1 + 3 + 2
        gate.opened.set()
        until(no_jobs)
    until(lambda: sessions() == 1)


@across_connections
@by_one_and_by_four
def test_threads_are_those_asked_for_and_the_keeper_and_gone_afterwards(concurrency):
    before = set(threading.enumerate())
    queue("reports").enqueue_many(range(50))
    most = []
    drain(lambda job: most.append(threading.active_count()), concurrency=concurrency)
    assert max(most) - len(before) == 1 + (concurrency if concurrency > 1 else 0)
    assert set(threading.enumerate()) == before


@across_connections
@by_one_and_by_four
def test_no_job_finds_queries_in_the_log_that_debug_keeps(settings, concurrency):
    settings.DEBUG = True
    connection.queries_log.clear()
    queue("reports").enqueue_many(range(20))
    found = []

    def run(job):
        found.append(sum(job.queue in query["sql"] for query in connection.queries))
        OrderFactory()

    with working(run, concurrency=concurrency):
        until(no_jobs)
    claims_of_its_batch = 20
    assert max(found) <= (claims_of_its_batch if concurrency == 1 else 0)


# -- in a test's own transaction ------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch):
    """A handler for "reports", for this test alone."""
    monkeypatch.setattr(registry.handlers, "_calls", {})
    runs = []

    @handler("reports")
    def run(job):
        runs.append((job.payload, set(threading.enumerate())))
        OrderFactory()
        if job.payload == "fail":
            raise RuntimeError("boom")

    return runs


@pytest.mark.django_db
@by_one_and_by_four
def test_a_command_in_a_testcase_works_in_the_tests_own_transaction(registered, concurrency):
    threads = set(threading.enumerate())
    queue("reports").enqueue_many(["fail", *range(9)])
    call_command("run_queue", burst=True, concurrency=concurrency)
    assert all(found == threads for _, found in registered)
    assert len(registered) == 10
    assert Order.objects.count() == 10
    assert list(Job.objects.values_list("state", "last_error")) == [("scheduled", "boom")]
    assert set(threading.enumerate()) == threads


@pytest.mark.django_db
def test_a_command_in_a_testcase_leaves_the_count_of_queries_to_the_test(
    registered, statements, settings
):
    settings.DEBUG = True
    queue("reports").enqueue("x")
    before = len(statements)
    call_command("run_queue", burst=True)
    assert len(statements) > before


# -- options --------------------------------------------------------------------------------------

WRONG = {
    "concurrency": ["0", "-1", "1001", "x", "1.5", ""],
    "batch-size": ["0", "1001", "many"],
    "poll-interval": ["0", "-1", "nan", "inf", "soon"],
    "grace": ["-1", "nan", "x"],
    "max-jobs": ["0", "-1", "x"],
    "worker-id": ["", "two\nlines", "x" * 129],
}


@pytest.mark.parametrize("command", [run_outbox, run_queue], ids=lambda module: module.__name__)
@pytest.mark.parametrize(("option", "values"), WRONG.items(), ids=WRONG)
def test_a_wrong_option_is_refused_with_one_sentence_that_names_it(command, option, values):
    parser = command.Command().create_parser("manage.py", "run_queue")
    for value in values:
        with pytest.raises(CommandError, match=f"^Error: argument --{option}: .+") as refused:
            parser.parse_args([f"--{option}={value}"])
        assert "\n" not in str(refused.value)


def test_the_options_say_what_they_mean():
    parser = run_queue.Command().create_parser("manage.py", "run_queue")
    line = (
        "a b --concurrency 4 --batch-size 1 --poll-interval 0.5 --grace 0 --max-jobs 9"
        " --worker-id host:1 --once --burst --database other"
    )
    given = vars(parser.parse_args(line.split()))
    assert (given["names"], given["grace"], given["database"]) == (["a", "b"], 0.0, "other")
    assert (given["concurrency"], given["batch_size"], given["max_jobs"]) == (4, 1, 9)
    assert (given["poll_interval"], given["worker_id"]) == (0.5, "host:1")
    assert (given["once"], given["burst"]) == (True, True)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["nobodys"], "The queue 'nobodys' has no handler in any app's jobs.py."),
        (["no spaces"], "expected the queue name to be .*, got 'no spaces'"),
        (["__alkstore_outbox:x"], "__alkstore_"),
    ],
    ids=["unregistered", "no name", "reserved"],
)
def test_a_queue_that_cannot_be_served_is_one_sentence(registered, names, sentence):
    with pytest.raises(CommandError, match=sentence):
        call_command("run_queue", *names, burst=True)


@pytest.mark.django_db
def test_a_command_with_nothing_registered_is_one_sentence(monkeypatch):
    monkeypatch.setattr(registry.handlers, "_calls", {})
    with pytest.raises(CommandError, match="^No handler is registered in any app's jobs.py.$"):
        call_command("run_queue", burst=True)


@pytest.mark.django_db
def test_once_processes_one_job_of_one_queue(registered):
    queue("reports").enqueue_many(range(3))
    call_command("run_queue", once=True, max_jobs=5)
    assert (len(registered), Job.objects.count()) == (1, 2)


@pytest.mark.django_db
def test_an_outbox_command_delivers_by_the_name_of_the_outbox(monkeypatch):
    monkeypatch.setattr(registry.deliveries, "_calls", {})
    delivered = []
    registry.delivery("letters")(lambda job: delivered.append(job.payload))
    outbox("letters").enqueue("hello")
    queue("letters").enqueue("not a message")
    call_command("run_outbox", "letters", burst=True)
    assert delivered == ["hello"]
    assert Job.objects.get().queue == "letters"


@pytest.fixture(autouse=True)
def _all_that_is_logged(caplog):
    caplog.set_level(logging.INFO, logger="django_alkstore")
