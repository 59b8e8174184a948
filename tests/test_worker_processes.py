"""The workers as processes: signals under load, lost sessions, odd settings, what they keep."""

import json
import signal
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection, transaction

from django_alkstore import outbox, queue
from django_alkstore.models import Fire, Job
from testproject.shop.models import Order

from . import pooler
from .factories import OrderFactory, ScheduleFactory
from .processes import URL, across_connections, bare_url, held, until

pytestmark = across_connections

by_one_and_by_four = pytest.mark.parametrize("concurrency", ["1", "4"])


@pytest.fixture
def receiving(tmp_path):
    """The environment in which ``tests.receiving`` is installed."""
    return {"SHOP_EXTRA_APPS": "tests.receiving", "RECEIVING_JOURNAL": str(tmp_path / "journal")}


@pytest.fixture
def run_queue(start, receiving):
    """Start ``run_queue`` over the handlers of ``tests.receiving``."""
    return lambda *args, **env: start("run_queue", *args, **{**receiving, **env})


@pytest.fixture
def run_outbox(start, receiving):
    """Start ``run_outbox`` over its deliveries."""
    return lambda *args, **env: start("run_outbox", *args, **{**receiving, **env})


@pytest.fixture
def journal(tmp_path):
    """What the handlers have written so far: an entry for each time one was entered."""
    path = tmp_path / "journal"
    return lambda: [json.loads(s) for s in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def let_leave(tmp_path):
    """Let the handlers leave that wait for it."""
    return (tmp_path / "journal.leave").touch


def no_jobs():
    return not Job.objects.exists()


def states():
    return Counter(Job.objects.values_list("state", "attempts"))


# -- serving --------------------------------------------------------------------------------------


@by_one_and_by_four
def test_run_queue_serves_every_queue_with_a_handler_and_no_other(run_queue, journal, concurrency):
    for name in ("tasks", "errands", "long-tasks"):
        queue(name).enqueue_many([name] * 5)
    queue("nobodys").enqueue("x")
    outbox("letters").enqueue("x")
    worker = run_queue("--concurrency", concurrency)
    until(lambda: len(journal()) == 15 and Job.objects.count() == 2)
    assert worker.terminate() == 0
    assert Counter(entry["payload"] for entry in journal()) == Counter(
        {"tasks": 5, "errands": 5, "long-tasks": 5}
    )
    assert states() == {("ready", 0): 2}


def test_the_options_do_what_they_say(run_queue, journal):
    queue("tasks").enqueue_many(range(10))
    queue("errands").enqueue("x")
    options = ["--max-jobs", "4", "--batch-size", "1", "--concurrency", "4", "--poll-interval", "9"]
    worker = run_queue("tasks", *options, "--worker-id", "host:one", "--database", "default")
    assert worker.wait() == 0, worker.text
    assert [entry["worker"] for entry in journal()] == ["host:one"] * 4
    assert run_queue("--once", "tasks").wait() == 0
    assert len(journal()) == 5
    assert run_queue("--burst", "tasks").wait() == 0
    assert Job.objects.get().queue == "errands"


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["--concurrency", "0"], 2, "argument --concurrency: expected it to be an int from 1"),
        (["--grace", "soon"], 2, "argument --grace: invalid number value: 'soon'"),
        (["nobodys"], 1, "The queue 'nobodys' has no handler in any app's jobs.py."),
        (["--database", "no"], 1, "an alias in DATABASES"),
    ],
    ids=["no thread", "no number", "no handler", "no database"],
)
def test_what_cannot_be_done_is_refused_with_one_sentence(run_queue, args, code, sentence):
    refused = run_queue(*args)
    assert refused.wait() == code
    assert sentence in refused.text.splitlines()[-1]
    assert "Traceback" not in refused.text


# -- stopping -------------------------------------------------------------------------------------


@by_one_and_by_four
def test_ctrl_c_under_load_loses_nothing_and_starts_nothing_twice(run_outbox, journal, concurrency):
    ids = outbox("letters").enqueue_many(list(range(2_000)))
    worker = run_outbox("--concurrency", concurrency)
    until(lambda: len(journal()) > 50)
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0, worker.text
    assert "Traceback" not in worker.text
    done = Counter(entry["key"].rpartition(":")[2] for entry in journal())
    left = set(Job.objects.values_list("id", flat=True))
    assert set(done.values()) == {1}
    assert {int(id) for id in done} | left == set(ids)
    assert not {int(id) for id in done} & left
    assert states().keys() <= {("ready", 0)}


@by_one_and_by_four
def test_what_still_runs_after_the_grace_is_left_to_other_workers(run_queue, journal, concurrency):
    running = queue("tasks").enqueue_many(["wait_for_leave"] * int(concurrency), priority=1)
    queue("tasks").enqueue_many(["unstarted"] * 5)
    worker = run_queue("--concurrency", concurrency, "--grace", "0.3")
    until(lambda: len(journal()) == int(concurrency))
    assert worker.terminate() == 0, worker.text
    assert states() == {("ready", 1): len(running), ("ready", 0): 5}
    for job in Job.objects.filter(id__in=running):
        assert job.last_error == "the worker was stopped before the job ended"
    assert len(journal()) == int(concurrency)


def test_without_grace_the_process_ends_at_once_and_holds_nothing(run_queue, journal):
    queue("tasks").enqueue_many(["quick"] * 15)
    queue("tasks").enqueue("wait_for_leave")
    queue("tasks").enqueue_many(["unstarted"] * 5, max_attempts=1)
    worker = run_queue("--grace", "0")
    until(lambda: "wait_for_leave" in [entry["payload"] for entry in journal()])
    assert worker.terminate() == 0
    assert states() == {("ready", 1): 1, ("ready", 0): 5}


def test_what_ends_within_the_grace_is_acked(run_queue, journal, let_leave):
    queue("tasks").enqueue_many(["wait_for_leave"] * 3)
    worker = run_queue("--concurrency", "3")
    until(lambda: len(journal()) == 3)
    worker.signal(signal.SIGTERM)
    let_leave()
    assert worker.wait() == 0
    assert no_jobs()


def test_a_heartbeat_goes_on_after_the_stop(run_queue, journal, let_leave):
    queue("long-tasks").enqueue("wait_for_leave", visibility_timeout=1)
    worker = run_queue()
    until(journal)
    worker.signal(signal.SIGTERM)
    first = Job.objects.get().due_at
    until(lambda: Job.objects.get().due_at > first)
    second = Job.objects.get().due_at
    until(lambda: Job.objects.get().due_at > second)
    assert queue("long-tasks").claim("another") is None
    let_leave()
    assert worker.wait() == 0
    assert no_jobs()


def test_a_worker_that_was_paused_does_not_run_what_others_have_taken_meanwhile(
    run_queue, journal, let_leave
):
    queue("tasks").enqueue_many(["quick"] * 15)
    queue("tasks").enqueue("wait_for_leave")
    behind = queue("tasks").enqueue_many(["behind"] * 5, visibility_timeout=1)
    paused = run_queue("--worker-id", "paused")
    until(lambda: Job.objects.filter(id__in=behind, state="running").count() == 5)
    paused.signal(signal.SIGSTOP)
    let_leave()
    taken = []
    until(lambda: taken.extend(queue("tasks").claim_batch("another", 5)) or len(taken) == 5)
    paused.signal(signal.SIGCONT)
    until(lambda: Job.objects.count() == 5)
    assert paused.terminate() == 0
    assert "behind" not in [entry["payload"] for entry in journal()]
    assert queue("tasks").ack_batch(taken) == 5


# -- losing the database --------------------------------------------------------------------------


def sessions():
    """How many sessions there are on the test database besides this one's."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity"
                " WHERE datname = CURRENT_DATABASE() AND pid <> PG_BACKEND_PID()"
            )
        else:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.processlist"
                " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
        return cursor.fetchone()[0]


@by_one_and_by_four
def test_a_session_lost_between_the_work_and_the_ack_costs_no_second_run(
    run_queue, journal, only_on, concurrency
):
    only_on("postgresql", "mysql")
    queue("tasks").enqueue_many(["end_the_session_and_return"] * 5)
    worker = run_queue("--concurrency", concurrency)
    until(no_jobs)
    assert worker.terminate() == 0
    assert [entry["attempt"] for entry in journal()] == [1] * 5


@by_one_and_by_four
def test_a_session_lost_in_the_work_is_a_failure_of_that_job_alone(
    run_queue, journal, only_on, concurrency
):
    only_on("postgresql", "mysql")
    queue("tasks").enqueue("end_the_session_once", backoff=0.01)
    queue("tasks").enqueue_many(["place_an_order"] * 5)
    worker = run_queue("--concurrency", concurrency)
    until(no_jobs)
    assert worker.terminate() == 0
    assert Counter((entry["payload"], entry["attempt"]) for entry in journal()) == {
        ("end_the_session_once", 1): 1,
        ("end_the_session_once", 2): 1,
        ("place_an_order", 1): 5,
    }
    assert Order.objects.count() == 5


def with_database(query):
    """The environment in which the database is set up so."""
    return {URL: f"{bare_url()}?{query}"}


@by_one_and_by_four
@pytest.mark.parametrize(
    "query",
    [
        "CONN_MAX_AGE=0&AUTOCOMMIT=false",
        "CONN_MAX_AGE=600&CONN_HEALTH_CHECKS=true",
        "CONN_MAX_AGE=null&CONN_HEALTH_CHECKS=true&ATOMIC_REQUESTS=true",
    ],
)
def test_work_and_acks_are_committed_whatever_the_settings_of_connections(
    run_queue, journal, query, concurrency
):
    queue("tasks").enqueue_many(["place_an_order", "fail_once"] * 10, backoff=0.01)
    worker = run_queue("--concurrency", concurrency, **with_database(query))
    until(no_jobs)
    assert worker.terminate() == 0
    assert Order.objects.count() == 10
    assert len(journal()) == 30
    assert "the database failed" not in worker.text


@by_one_and_by_four
@pytest.mark.parametrize(
    "query", ["CONN_MAX_AGE=null", "CONN_MAX_AGE=600&CONN_HEALTH_CHECKS=true", "CONN_MAX_AGE=0"]
)
def test_sessions_that_the_server_closes_when_idle_cost_no_job(
    run_queue, journal, only_on, query, concurrency
):
    only_on("mysql")
    env = with_database(f"{query}&init_command=SET SESSION wait_timeout = 2")
    worker = run_queue("--concurrency", concurrency, "--poll-interval", "4", **env)
    queue("tasks").enqueue_many(["place_an_order"] * 4)
    until(no_jobs)
    until(lambda: sessions() == 0)
    queue("tasks").enqueue_many(["place_an_order"] * 4)
    until(no_jobs)
    assert worker.terminate() == 0
    assert [entry["attempt"] for entry in journal()] == [1] * 8
    assert Order.objects.count() == 8


def transactions():
    """How many are open in other sessions."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = CURRENT_DATABASE()"
                " AND pid <> PG_BACKEND_PID() AND xact_start IS NOT NULL"
            )
        else:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.innodb_trx trx"
                " JOIN information_schema.processlist process ON process.id = trx_mysql_thread_id"
                " WHERE db = DATABASE() AND process.id <> CONNECTION_ID()"
            )
        return cursor.fetchone()[0]


@pytest.mark.parametrize("query", ["AUTOCOMMIT=true", "AUTOCOMMIT=false"])
def test_idle_commands_hold_no_transaction_open_and_see_what_others_commit(
    start, run_queue, journal, only_on, query
):
    only_on("postgresql", "mysql")
    worker = run_queue("--poll-interval", "0.5", **with_database(query))
    scheduler = start("run_schedules", **with_database(query))
    scheduler.until_says("leading as")
    for count in (1, 2):
        until(lambda: transactions() == 0)
        queue("tasks").enqueue("x")
        until(lambda count=count: len(journal()) == count and no_jobs())
    assert (worker.terminate(), scheduler.terminate()) == (0, 0)


@by_one_and_by_four
def test_a_write_that_outlasts_the_timeout_of_sqlite_stops_no_loop_and_repeats_no_work(
    start, run_queue, journal, let_leave, only_on, concurrency
):
    only_on("sqlite")
    ScheduleFactory(name="fast", spec="@every 1s", overdue=True)
    env = with_database("OPTIONS={}&timeout=0.1")
    queue("tasks").enqueue("wait_for_leave")
    worker, scheduler = (
        run_queue("--concurrency", concurrency, **env),
        start("run_schedules", **env),
    )
    until(lambda: journal() and Fire.objects.exists())

    @contextmanager
    def writing():
        with transaction.atomic():
            OrderFactory()
            yield

    with held(writing):
        let_leave()
        for process in (worker, scheduler):
            process.until_says("database is locked")
    until(lambda: not Job.objects.filter(queue="tasks").exists())
    fires = Fire.objects.count()
    until(lambda: Fire.objects.count() > fires)
    assert len(journal()) == 1
    assert (worker.terminate(), scheduler.terminate()) == (0, 0)


# -- a pooler in between --------------------------------------------------------------------------


@pytest.fixture
def behind_pooler(tmp_path, only_on):
    """The URL of the test database behind a pooler with three sessions."""
    only_on("postgresql")
    if pooler.PROGRAM is None:
        pytest.skip("pgbouncer is not installed")
    with pooler.pooled(bare_url(), tmp_path, sessions=3) as url:
        yield url


def test_behind_a_pooler_a_worker_polls_and_says_so_once(run_queue, journal, behind_pooler):
    queue("tasks").enqueue_many(["place_an_order"] * 10)
    through = {"ALKSTORE_DATABASE_URL": behind_pooler}
    worker = run_queue("--concurrency", "4", "--poll-interval", "0.1", **through)
    until(no_jobs)
    for payload in ("one", "two"):
        queue("tasks").enqueue(payload)
        until(lambda payload=payload: journal()[-1]["payload"] == payload)
    assert worker.terminate() == 0, worker.text
    assert worker.text.count("behind a connection pooler") == 1
    assert Order.objects.count() == 10


# -- what they keep -------------------------------------------------------------------------------


def resident(process):
    """The memory of a process in MB."""
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    [kilobytes] = [s.split()[1] for s in status.splitlines() if s.startswith("VmRSS")]
    return int(kilobytes) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@by_one_and_by_four
def test_memory_does_not_grow_with_the_jobs_under_debug(run_queue, concurrency):
    worker = run_queue("--concurrency", concurrency, SHOP_DEBUG="1", RECEIVING_JOURNAL="/dev/null")

    def run_more(count):
        queue("tasks").enqueue_many(["x"] * count)
        until(no_jobs)
        return resident(worker)

    before = run_more(1_000)
    after = run_more(4_000)
    assert worker.terminate() == 0
    assert after - before < 5
