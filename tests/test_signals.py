"""What the project is told: by signals, and by the keys of log records."""

import ast
import logging
from contextlib import contextmanager

import pytest
from django.db import transaction

from django_alkstore import PermanentError, StopToken, outbox, queue, signals
from django_alkstore.exceptions import LeadershipLost
from django_alkstore.models import Job, Lock
from django_alkstore.scheduler import Scheduler, run_schedules
from django_alkstore.schedules import fire_now

from .factories import JobFactory, ScheduleFactory, ago
from .test_layout import TREES
from .workers import drain

pytestmark = pytest.mark.django_db

ALL = ("job_dead", "job_retried", "lease_lost", "schedule_fired", "leadership_gained",
       "leadership_lost")  # fmt: skip


@contextmanager
def told(*names):
    """What receivers of the signals are told inside the block: (name, what) in order."""
    heard = []

    def listener(name):
        def listen(signal, sender, **what):
            heard.append((name, what))

        return listen

    listeners = {name: listener(name) for name in names or ALL}
    for name, listen in listeners.items():
        getattr(signals, name).connect(listen)
    try:
        yield heard
    finally:
        for name, listen in listeners.items():
            getattr(signals, name).disconnect(listen)


def fail(job):
    raise ValueError("no such order")


# -- jobs -----------------------------------------------------------------------------------------


def test_a_retried_job_is_told_of_with_its_delay():
    id = queue("reports").enqueue(1, backoff=7)
    with told() as heard:
        drain(fail)
    what = {"queue": "reports", "job_id": id, "attempts": 1, "error": "no such order", "delay": 7.0}
    assert heard == [("job_retried", what)]


def test_a_dead_job_is_told_of_with_its_reason():
    id = queue("reports").enqueue(1, max_attempts=1)
    with told() as heard:
        drain(fail)
    what = {"queue": "reports", "job_id": id, "attempts": 1, "error": "no such order"}
    assert heard == [("job_dead", what)]


def test_a_job_that_a_sweep_finds_dead_is_told_of_too():
    job = JobFactory(expired=True)
    with told("job_dead") as heard:
        queue("reports").claim("w")
    assert [(name, what["job_id"], what["attempts"]) for name, what in heard] == [
        ("job_dead", job.pk, None)
    ]


def test_a_job_is_dead_before_it_is_told_of():
    states = []

    def look(sender, job_id, **what):
        states.append(Job.objects.get(pk=job_id).state)

    signals.job_dead.connect(look)
    try:
        queue("reports").enqueue(1, max_attempts=1)
        drain(fail)
    finally:
        signals.job_dead.disconnect(look)
    assert states == ["dead"]


def test_a_late_write_back_is_told_of_once():
    job = queue("reports").enqueue(1) and queue("reports").claim("w")
    Job.objects.update(claim_token=1)
    with told("lease_lost") as heard:
        assert not any([job.heartbeat(), job.ack(), job.retry("late")])
    assert heard == [("lease_lost", {"queue": "reports", "job_ids": [job.id], "lost": 1})]


def test_a_late_batch_is_told_of_by_the_worker():
    ids = queue("reports").enqueue_many([1, 2])

    def lose(job):
        Job.objects.filter(pk=ids[0]).update(claim_token=1)

    with told("lease_lost") as heard:
        drain(lose, batch_size=2)
    assert sum(what["lost"] for _, what in heard) == 1


def test_what_is_done_in_time_is_told_to_nobody():
    queue("reports").enqueue(1)
    with told() as heard:
        drain(lambda job: None)
    assert heard == []


def test_nothing_is_told_on_the_way_of_an_enqueue():
    with told() as heard, transaction.atomic():
        queue("reports").enqueue_tx(1)
        outbox("receipts").enqueue_many([1, 2], delay=5)
    assert heard == []


def test_a_receiver_that_raises_changes_nothing():
    def raises(sender, **what):
        raise RuntimeError("a broken receiver")

    signals.job_dead.connect(raises)
    try:
        queue("reports").enqueue(1, max_attempts=1)
        queue("reports").enqueue(2)
        drain(lambda job: fail(job) if job.payload == 1 else None)
    finally:
        signals.job_dead.disconnect(raises)
    assert Job.objects.get().state == "dead"


# -- the scheduler --------------------------------------------------------------------------------


def test_a_fire_is_told_of_with_its_boundary_and_job():
    row = ScheduleFactory(name="nightly", overdue=True)
    scheduler = Scheduler()
    scheduler.lead()
    with told("schedule_fired") as heard:
        scheduler.pass_once()
    ((_, what),) = heard
    assert (what["schedule"], what["boundary"]) == ("nightly", row.next_fire_at)
    assert (what["job_id"], what["by"]) == (Job.objects.get().pk, scheduler.lease.owner)


def test_a_boundary_that_is_fired_already_is_not_told_of_again():
    ScheduleFactory(overdue=True)
    scheduler = Scheduler()
    scheduler.lead()
    scheduler.pass_once()
    with told("schedule_fired") as heard:
        scheduler.pass_once()
    assert heard == []


def test_a_fire_by_hand_is_told_of_without_a_boundary():
    row = ScheduleFactory(name="nightly")
    with told("schedule_fired") as heard:
        job_id = fire_now(row.name, by="ada")
    what = {"schedule": "nightly", "boundary": None, "queue": "reports", "job_id": job_id}
    assert heard == [("schedule_fired", what | {"by": "ada"})]


def test_a_leader_tells_when_it_begins_and_when_it_resigns():
    stop = StopToken()
    stop.cancel()
    with told() as heard:
        run_schedules(stop)
    assert [name for name, _ in heard] == ["leadership_gained", "leadership_lost"]
    assert heard[0][1]["owner"] == heard[1][1]["owner"]
    assert heard[1][1]["reason"] == "released"


def test_a_leader_that_was_taken_over_tells_so():
    scheduler = Scheduler()
    scheduler.lead()
    Lock.objects.update(owner="another", token=9)
    with told("leadership_lost") as heard, pytest.raises(LeadershipLost):
        scheduler.fire_until(StopToken())
    assert [what["reason"] for _, what in heard] == ["taken over"]


def test_a_runner_that_is_refused_tells_nothing():
    Scheduler().lead()
    with told() as heard, pytest.raises(LeadershipLost):
        Scheduler().lead()
    assert heard == []


# -- logs -----------------------------------------------------------------------------------------


def logging_calls():
    """Every call of a logger in the package: (source, the call)."""
    words = {"debug", "info", "warning", "error", "exception", "critical", "log"}
    for source, tree in TREES.items():
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            of = getattr(getattr(called, "value", None), "id", None)
            if of == "logger" and called.attr in words:
                yield source, node


def test_every_log_record_has_keys_of_its_own():
    without = [
        f"{source}:{call.lineno}"
        for source, call in logging_calls()
        if "extra" not in {keyword.arg for keyword in call.keywords}
    ]
    assert without == []


def test_the_keys_that_a_call_names_are_documented():
    named = {
        key.value
        for _, call in logging_calls()
        for keyword in call.keywords
        if keyword.arg == "extra"
        for node in ast.walk(keyword.value)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert named and named <= signals.LOG_KEYS.keys()


def test_no_documented_key_is_one_of_pythons_own():
    record = logging.LogRecord("x", 0, "x", 0, "x", (), None)
    assert not {*vars(record), "message", "asctime"} & signals.LOG_KEYS.keys()


def test_a_failure_is_logged_with_what_it_is_about(caplog):
    id = queue("reports").enqueue(1)
    drain(fail)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (record.queue, record.job_id, record.attempts, record.max_attempts) == (
        "reports", id, 1, 3
    )  # fmt: skip


def test_skipped_boundaries_are_logged_with_their_schedule(caplog):
    ScheduleFactory(name="nightly", spec="@every 1s", next_fire_at=ago(900))
    Scheduler().tick()
    (record,) = [record for record in caplog.records if hasattr(record, "schedule")]
    assert (record.schedule, record.count > 800) == ("nightly", True)


def test_a_permanent_failure_has_the_keys_of_its_job(caplog):
    def give_up(job):
        raise PermanentError("the order was deleted")

    id = queue("reports").enqueue(1)
    drain(give_up)
    assert [record.job_id for record in caplog.records if record.levelno == logging.ERROR] == [id]
