"""The real commands as processes: signals, crashes, outages, and who takes over."""

import json
import select
import signal
import socket
import sys
import threading
from collections import Counter
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from django_alkstore import outbox
from django_alkstore.models import Fire, Job, Lock
from django_alkstore.names import SCHEDULER_LOCK, backing_queue

from .factories import LockFactory, ScheduleFactory, ago
from .processes import database_url, is_pooled, until

pytestmark = pytest.mark.django_db(transaction=True)

LETTERS = backing_queue("letters")
SHORT_LEASE = {"SHOP_LEASE_SECONDS": "2"}
both_signals = pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])


@pytest.fixture
def run_schedules(start):
    """Start ``run_schedules`` with a short lease."""
    return lambda *args, **env: start("run_schedules", *args, **{**SHORT_LEASE, **env})


@pytest.fixture
def run_outbox(start, tmp_path):
    """Start ``run_outbox`` over the deliveries of ``tests.receiving``."""
    receiving = {
        "SHOP_EXTRA_APPS": "tests.receiving",
        "RECEIVING_JOURNAL": str(tmp_path / "journal"),
    }
    return lambda *args, **env: start("run_outbox", *args, **{**receiving, **env})


@pytest.fixture
def journal(tmp_path):
    """What the deliveries of ``tests.receiving`` have written so far."""
    path = tmp_path / "journal"
    return lambda: [json.loads(s) for s in path.read_text().splitlines()] if path.exists() else []


def leader():
    return Lock.objects.filter(name=SCHEDULER_LOCK).values_list("owner", flat=True).first() or ""


def leads(process):
    return f":{process.popen.pid}:" in leader()


def boundaries(name):
    return list(
        Fire.objects.filter(schedule=name).order_by("boundary").values_list("boundary", flat=True)
    )


def fires_again(name="fast"):
    before = Fire.objects.filter(schedule=name).count()
    until(lambda: Fire.objects.filter(schedule=name).count() > before)
    return True


def every_boundary_fired_once(name="fast"):
    """One fire and one job for each second from the first to the last."""
    found = boundaries(name)
    jobs = Job.objects.filter(schedule=name).order_by("scheduled_for")
    return found == list(jobs.values_list("scheduled_for", flat=True)) == [
        found[0] + timedelta(seconds=k) for k in range(len(found))
    ]  # fmt: skip


def is_one_sentence(text, words):
    """Whether a command ended with one line for people, and not with a traceback."""
    last = text.strip().splitlines()[-1]
    return words in last and "Traceback" not in text


def reaches(process, condition):
    """Wait for what the process is to bring about; fails with its words if it ends before."""
    until(lambda: condition() or process.popen.poll() is not None)
    assert condition(), process.text


def is_delivered():
    return not Job.objects.exists()


# -- leading --------------------------------------------------------------------------------------


def test_a_standby_takes_over_after_a_crash_and_the_next_after_a_clean_stop(run_schedules):
    ScheduleFactory(name="fast", spec="@every 1s", overdue=True)
    first = run_schedules()
    first.until_says("leading as")
    second = run_schedules()
    second.until_says("standing by")
    first.kill()
    until(lambda: leads(second))
    assert fires_again()
    third = run_schedules()
    third.until_says("standing by")
    assert second.terminate() == 0
    until(lambda: leads(third))
    assert fires_again()
    assert third.terminate() == 0
    assert every_boundary_fired_once()


def test_a_leader_that_was_paused_stands_by_when_it_wakes(run_schedules):
    ScheduleFactory(name="fast", spec="@every 1s", overdue=True)
    first = run_schedules()
    first.until_says("leading as")
    until(Fire.objects.exists)
    second = run_schedules()
    second.until_says("standing by")
    pause(first)
    until(lambda: leads(second))
    assert fires_again()
    first.signal(signal.SIGCONT)
    first.until_says("standing by")
    assert fires_again()
    assert (first.terminate(), second.terminate()) == (0, 0)
    assert every_boundary_fired_once()


def pause(leader):
    """SIGSTOP between two transactions: on SQLite one inside would hold the file, and everybody."""
    leader.signal(signal.SIGSTOP)
    while connection.vendor == "sqlite":
        try:
            return Lock.objects.filter(name="nobody's").update(token=0)
        except OperationalError:
            leader.signal(signal.SIGCONT)
            leader.signal(signal.SIGSTOP)


# A leader that stops itself inside its transaction, between the renewal and the insert of a job.
PAUSED_LEADER = """
import django, os, signal
django.setup()
from django.db import connection
from django_alkstore.scheduler import Scheduler
from django_alkstore.shutdown import StopToken
armed = [True]
def pause(execute, sql, params, many, context):
    if armed and "INTO django_alkstore_job" in sql:
        armed.clear()
        print("pausing", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    return execute(sql, params, many, context)
scheduler = Scheduler()
scheduler.lead()
with connection.execute_wrapper(pause):
    scheduler.fire_until(StopToken())
"""


def test_a_leader_paused_inside_its_tick_cannot_fire_beside_its_successor(
    start, run_schedules, only_on
):
    only_on("postgresql", "mysql")
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
        pytest.skip("MySQL has no timeout for idle transactions")
    ScheduleFactory(name="fast", spec="@every 1s", overdue=True)
    paused = start(argv=[sys.executable, "-c", PAUSED_LEADER], **SHORT_LEASE)
    paused.until_says("pausing")
    successor = run_schedules()
    successor.until_says("leading as")
    until(Fire.objects.exists)
    paused.signal(signal.SIGCONT)
    assert paused.wait() == 1
    assert "LeadershipLost" in paused.text
    assert fires_again()
    assert successor.terminate() == 0
    assert every_boundary_fired_once()


def test_once_fires_what_is_due_and_frees_the_lease(run_schedules):
    ScheduleFactory.create_batch(3, overdue=True)
    assert run_schedules("--once").wait() == 0
    assert (Fire.objects.count(), Job.objects.count(), leader()) == (3, 3, "")


@pytest.mark.parametrize("flag", ["--once", "--exit-on-loss"])
def test_a_runner_that_does_not_stand_by_ends_with_1_while_another_leads(run_schedules, flag):
    ScheduleFactory(overdue=True)
    LockFactory(name=SCHEDULER_LOCK)
    refused = run_schedules(flag)
    assert refused.wait() == 1
    assert is_one_sentence(refused.text, "no other scheduler to lead")
    assert not Fire.objects.exists()


def test_exit_on_loss_ends_with_1_when_another_takes_over(run_schedules, own_transactions):
    runner = run_schedules("--exit-on-loss", "--database", "default")
    runner.until_says("leading as")
    Lock.objects.update(owner="another:1:bb", token=99, expires_at=ago(-60))
    assert runner.wait() == 1
    assert is_one_sentence(runner.text, "another that took over")
    assert leader() == "another:1:bb"


# -- starting -------------------------------------------------------------------------------------


def test_an_unmigrated_or_unknown_database_is_one_clear_sentence_and_exit_1(start, tmp_path):
    empty = {"ALKSTORE_DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
    unmigrated = [start(command, **empty) for command in ("run_schedules", "run_outbox")]
    unknown = [start(name, "--database", "no") for name in ("run_schedules", "run_outbox")]
    assert [process.wait() for process in unmigrated + unknown] == [1] * 4
    assert all(is_one_sentence(process.text, "manage.py migrate") for process in unmigrated)
    assert all(is_one_sentence(process.text, "an alias in DATABASES") for process in unknown)


def test_a_scheduler_without_schedules_waits_for_one(run_schedules):
    runner = run_schedules()
    runner.until_says("leading as")
    ScheduleFactory(name="late", overdue=True)
    reaches(runner, lambda: boundaries("late"))
    assert runner.terminate() == 0


def test_an_outbox_without_a_delivery_is_warned_about_and_its_rows_wait(run_outbox, journal):
    waiting = outbox("nobodys").enqueue("hello")
    outbox("letters").enqueue("hello")
    worker = run_outbox()
    reaches(worker, lambda: "nobodys" in worker.text and "no delivery" in worker.text)
    reaches(worker, journal)
    assert worker.terminate() == 0
    job = Job.objects.get(id=waiting)
    assert (job.state, job.attempts) == ("ready", 0)


# -- stopping -------------------------------------------------------------------------------------


@both_signals
def test_an_idle_command_ends_with_0_at_a_signal(run_schedules, run_outbox, journal, signum):
    outbox("letters").enqueue("hello")
    scheduler, worker = run_schedules(), run_outbox()
    scheduler.until_says("leading as")
    reaches(worker, lambda: journal() and is_delivered())
    scheduler.signal(signum)
    worker.signal(signum)
    assert (scheduler.wait(), worker.wait()) == (0, 0)
    assert leader() == ""


def test_a_standby_ends_with_0_at_a_signal(run_schedules):
    LockFactory(name=SCHEDULER_LOCK)
    standby = run_schedules()
    standby.until_says("standing by")
    assert standby.terminate() == 0
    assert leader() == "host:1:aa"


@both_signals
def test_a_worker_finishes_the_job_in_hand_and_starts_no_other(
    run_outbox, journal, tmp_path, signum
):
    outbox("letters").enqueue("wait_for_leave")
    left = outbox("letters").enqueue("hello")
    worker = run_outbox("letters")
    reaches(worker, journal)
    worker.signal(signum)
    (tmp_path / "journal.leave").touch()
    assert worker.wait() == 0
    assert [entry["payload"] for entry in journal()] == ["wait_for_leave"]
    job = Job.objects.get()
    assert (job.id, job.state, job.attempts) == (left, "ready", 0)


def test_a_second_signal_ends_a_worker_now(run_outbox, journal):
    outbox("letters").enqueue("wait_for_leave")
    worker = run_outbox("letters")
    reaches(worker, journal)
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.wait() in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert Job.objects.get().state == "running"


class Proxy:
    """A port in front of the database server, which can be shut."""

    def __init__(self):
        conf = connection.settings_dict
        self.server = (conf["HOST"], int(conf["PORT"]))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = database_url().replace(
            f":{conf['PORT']}/", f":{self.listener.getsockname()[1]}/"
        )
        self.links = []
        self.thread = threading.Thread(target=self._accept)
        self.thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(self.server)
            self.links += [near, far]
            threading.Thread(target=self._copy, args=(near, far)).start()

    def _copy(self, near, far):
        other = {near: far, far: near}
        try:
            while True:
                for side in select.select([near, far], [], [])[0]:
                    if not (data := side.recv(65536)):
                        return
                    other[side].sendall(data)
        except (OSError, ValueError):
            return
        finally:
            near.close()
            far.close()

    def shut(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for link in self.links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                link.close()
        self.thread.join(10)


@pytest.fixture
def proxy(only_on):
    only_on("postgresql", "mysql")
    proxy = Proxy()
    yield proxy
    if proxy.thread.is_alive():
        proxy.shut()


def test_a_signal_ends_a_command_with_0_during_a_database_outage(
    run_schedules, run_outbox, journal, proxy
):
    outbox("letters").enqueue("hello")
    through = {"ALKSTORE_DATABASE_URL": proxy.url}
    scheduler, worker = run_schedules(**through), run_outbox(**through)
    scheduler.until_says("leading as")
    reaches(worker, lambda: journal() and is_delivered())
    proxy.shut()
    for process in (scheduler, worker):
        process.until_says("the database failed")
        assert process.terminate() == 0, process.text


# -- losing the database --------------------------------------------------------------------------


def end_sessions():
    """End every other session on the test database; how many there were."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = CURRENT_DATABASE() AND pid <> PG_BACKEND_PID()"
            )
            return len(cursor.fetchall())
        cursor.execute(
            "SELECT id FROM information_schema.processlist"
            " WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        )
        ids = [id for (id,) in cursor.fetchall()]
        for id in ids:
            cursor.execute(f"KILL {id}")
        return len(ids)


def test_both_commands_go_on_after_their_sessions_were_ended(
    run_schedules, run_outbox, journal, only_on
):
    only_on("postgresql", "mysql")
    ScheduleFactory(name="fast", spec="@every 1s", overdue=True)
    scheduler, worker = run_schedules(), run_outbox("letters")
    outbox("letters").enqueue("before")
    scheduler.until_says("leading as")
    reaches(worker, lambda: boundaries("fast") and len(journal()) == 1)
    until(end_sessions)
    for process in (scheduler, worker):
        if not is_pooled():  # or the pooler has another session for it
            process.until_says("the database failed")
    assert fires_again()
    outbox("letters").enqueue("after")
    reaches(worker, lambda: len(journal()) == 2)
    assert (scheduler.terminate(), worker.terminate()) == (0, 0)
    assert "standing by" not in scheduler.text
    assert every_boundary_fired_once()


# -- crashes of a worker --------------------------------------------------------------------------


def test_a_worker_killed_after_the_side_effect_leaves_the_message_to_another(run_outbox, journal):
    workers = [run_outbox("letters", "--poll-interval", "0.5") for _ in range(2)]
    outbox("letters").enqueue("be_killed_once", visibility_timeout=1)
    until(lambda: len(journal()) == 2 and is_delivered())
    first, second = journal()
    assert first["key"] == second["key"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    until(lambda: any(worker.popen.poll() is not None for worker in workers))
    assert sorted(worker.popen.poll() or worker.terminate() for worker in workers) == [-9, 0]


def is_done_before_it_dies(worker):
    """Wait until the worker has died, or everything is delivered or dead; whether it is that."""

    def done():
        return not Job.objects.exclude(state="dead").exists()

    until(lambda: worker.popen.poll() is not None or done())
    return done()


def test_a_message_that_kills_its_worker_dies_of_it_and_the_others_are_delivered(
    run_outbox, journal
):
    deadly = outbox("letters").enqueue("die", max_attempts=3, visibility_timeout=1)
    good = outbox("letters").enqueue_many(list(range(10)), visibility_timeout=1, max_attempts=9)
    workers = [run_outbox("letters")]
    while not is_done_before_it_dies(workers[-1]):
        workers.append(run_outbox("letters"))
    assert workers.pop().terminate() == 0
    assert [worker.wait() for worker in workers] == [137] * 3
    entered = Counter(entry["key"] for entry in journal())
    assert entered[f"{LETTERS}:{deadly}"] == 3
    assert {f"{LETTERS}:{id}" for id in good} < entered.keys()
    dead = Job.objects.get()
    assert (dead.id, dead.attempts, bool(dead.last_error)) == (deadly, 3, True)


def test_three_workers_deliver_each_message_once(run_outbox, journal):
    ids = outbox("letters").enqueue_many(list(range(300)))
    workers = [run_outbox("letters", "--burst") for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert Counter(entry["key"] for entry in journal()) == Counter(f"{LETTERS}:{id}" for id in ids)
    assert not Job.objects.exists()


def test_a_delivery_that_fails_is_retried_and_keeps_its_key(run_outbox, journal):
    outbox("letters").enqueue("fail_once", backoff=0.01)
    worker = run_outbox("letters")
    reaches(worker, lambda: len(journal()) == 2 and is_delivered())
    assert worker.terminate() == 0
    assert len({entry["key"] for entry in journal()}) == 1
    assert [entry["attempt"] for entry in journal()] == [1, 2]
