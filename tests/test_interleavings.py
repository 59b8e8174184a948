"""Every interleaving of two workers, and of two schedulers, and a fault at every statement.

One stops before or after each statement of its verb in turn, the other does all of its own, or stops
itself in the midst of it, and the first goes on. Whatever comes of it, every job is done in the end,
and no rule of the torture's checker is broken. The limit: nobody stops more than once.
"""

import itertools
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial

import pytest
from django.db import Error, connection

from django_alkstore import LeadershipLost, models, queue, schedule, sql
from django_alkstore.scheduler import Scheduler
from django_alkstore.surroundings import drop
from testproject.shop.models import Order

from .pauses import (
    Beside,
    Point,
    Stopped,
    anybody_can_write,
    in_a_fork,
    kill_process,
    lose_connection,
    points,
    raise_conflict,
    stops,
)
from .processes import across_connections, until
from .torture.evidence import gather
from .torture.history import JOURNAL, journal
from .torture.parties.acts import finish
from .torture.recording import recorded
from .torture.rules import check
from .torture.scenarios import claim, hand_out_the_rest, let_lapse, let_lease_lapse, place, register

pytestmark = across_connections
needs_its_session = pytest.mark.usefixtures("own_sessions")

KILLED = -9
NOWHERE = ("before", 0)
TABLES = (models.Job, models.Fire, models.Schedule, models.Lock, Order)


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """A block in an empty database; after it all jobs are handed out, and no rule may be broken."""
    numbers = itertools.count()

    @contextmanager
    def block(what):
        path = tmp_path / f"{next(numbers)}.jsonl"
        monkeypatch.setenv(JOURNAL, str(path))
        for model in TABLES:
            model.objects.all().delete()
        with recorded(journal()):
            journal().write("begin", what=str(what))
            yield
            hand_out_the_rest()
        evidence = gather(path)
        for rule, faults in check(evidence).items():
            assert not faults, "\n".join([f"{what}: {rule}", *evidence.story(faults[0].subject)])

    return block


def interleave(first, second, point, inner=NOWHERE):
    """Stop ``first`` at the point, run ``second``, and let ``first`` go on; whether ``second`` came
    to ``inner``, where it stops until ``first`` has ended or has to wait for it.

    Where ``second`` has to wait for what ``first`` holds, it goes on after it.
    """
    other = Beside(second, *inner)
    with Stopped(first, point.when, point.number) as stopped:
        other.start()
        if has_stopped := other.is_stopped:
            if anybody_can_write():
                stopped.resume()
            other.go_on.set()
    other.until_it_ends()
    if stopped.error:
        raise stopped.error
    point.reached = stopped.point.reached
    point.is_last = point.when == "after" and stopped.point.count <= point.number
    return has_stopped


def in_turn(judged, calls, what, finish=lambda: None):
    """Every interleaving of two calls in which each of them stops once, in its midst."""
    with judged(f"{what}: the first alone"):
        outer = stops(calls()[0])
    with judged(f"{what}: the second alone"):
        inner = stops(calls()[1])
    for where in outer:
        for other in inner:
            with judged(f"{what}, stopped {where} and {other}"):
                has_stopped = interleave(*calls(), Point(None, *where), other)
                finish()
            if not has_stopped:  # it ended before, or waited: so it would for what comes later
                break


# -- two workers ----------------------------------------------------------------------------------


def finish_and_ack(job):
    finish(job)
    return job.ack()


WORKER_VERBS = {
    "claim": lambda job: claim("b"),
    "sweep": lambda job: sql.engine().sweep("chores"),
    "ack": finish_and_ack,
    "retry": lambda job: job.retry("again", delay=0),
    "fail": lambda job: job.fail("no such month"),
    "heartbeat": lambda job: job.heartbeat(),
    "release": lambda job: job.release(),
}


LONG_WORKER_VERBS = ("claim", "sweep", "heartbeat")  # of the others there is no midst


def a_lapsed_claim():
    place("another")
    place(priority=1)
    job = claim()
    let_lapse(job)
    return job


@needs_its_session
@pytest.mark.parametrize("first", WORKER_VERBS)
def test_two_workers_can_stop_each_other_anywhere_and_break_nothing(first, judged):
    for second, verb in WORKER_VERBS.items():
        for point in points(None):
            with judged(f"{first}, stopped {point}, {second}"):
                job = a_lapsed_claim()
                calls = partial(WORKER_VERBS[first], job), partial(verb, job)
                interleave(*calls, point)


@needs_its_session
@pytest.mark.parametrize("second", LONG_WORKER_VERBS)
@pytest.mark.parametrize("first", LONG_WORKER_VERBS)
def test_two_workers_can_stop_each_other_in_turn_and_break_nothing(first, second, judged):
    verbs = WORKER_VERBS[first], WORKER_VERBS[second]

    def calls():
        job = a_lapsed_claim()
        return [partial(verb, job) for verb in verbs]

    in_turn(judged, calls, f"{first}, {second}")


def test_a_claim_that_lapses_before_its_call_returns_is_handed_out_once(judged):
    chores = queue("chores")
    chores._swept = float("inf")  # just now, so that the claim comes before the sweep
    with judged("a pause between claim and sweep"):
        place()
        with Stopped(lambda: chores.claim_batch("a", 2), "before", text="due_at <=") as stopped:
            let_lapse(models.Job.objects.get())
        (job,) = stopped.result
        assert job.attempts == 2
        assert WORKER_VERBS["ack"](job)


@pytest.mark.parametrize("verb", WORKER_VERBS)
def test_a_conflict_at_any_statement_of_a_worker_is_tried_again(verb, judged):
    with judged("no conflict"):
        expected = WORKER_VERBS[verb](a_lapsed_claim())
    for point in points(raise_conflict):
        if point.when == "before":
            with judged(point):
                job = a_lapsed_claim()
                with point.here():
                    found = WORKER_VERBS[verb](job)
                assert bool(found) == bool(expected), point


@needs_its_session
@pytest.mark.parametrize("verb", WORKER_VERBS)
def test_a_worker_can_lose_its_connection_anywhere_and_lose_nothing(verb, judged, only_on):
    only_on("postgresql", "mysql")
    for point in points(lose_connection):
        with judged(point):
            job = a_lapsed_claim()
            with suppress(Error), point.here():
                WORKER_VERBS[verb](job)
            drop(connection)


@pytest.mark.parametrize("verb", WORKER_VERBS)
def test_a_worker_can_be_killed_anywhere_and_lose_nothing(verb, judged):
    def run(point, job):
        with point.here():
            WORKER_VERBS[verb](job)

    for point in points(kill_process):
        with judged(point):
            job = a_lapsed_claim()
            point.reached = in_a_fork(partial(run, point, job)) == KILLED


# -- two schedulers -------------------------------------------------------------------------------


def overdue_with_a_lapsed_leader():
    """A schedule with three boundaries due, a leader whose lease has lapsed, and another runner."""
    register(overdue=timedelta(seconds=150))
    leader, other = Scheduler(), Scheduler()
    leader.lead()
    let_lease_lapse(leader.lease.name)
    return leader, other


def take_over(leader, other):
    other.lead()
    other.pass_once()


SCHEDULER_VERBS = {
    "renew and tick": lambda leader, other: leader.pass_once(),
    "resign": lambda leader, other: leader.resign(),
    "tick without the lease": lambda leader, other: other.tick(),
    "lead": lambda leader, other: other.lead(),
    "register again": lambda leader, other: schedule("nightly", "@every 1m", "reports", LATER),
}
LONG_SCHEDULER_VERBS = ("renew and tick", "tick without the lease", "lead")
BESIDE = {**SCHEDULER_VERBS, "lead": take_over}  # and go on, as far as it gets
LATER = {"mark": None, "act": "fine", "note": "changed"}


def unless_it_lost(verb, *runners):
    with suppress(LeadershipLost):
        verb(*runners)


def fire_the_rest():
    """A killed runner holds its rows until the server has noticed."""
    until(lambda: Scheduler().tick() or models.Fire.objects.count() == 3)


@needs_its_session
@pytest.mark.parametrize("first", SCHEDULER_VERBS)
def test_two_schedulers_can_stop_each_other_anywhere_and_fire_once(first, judged):
    for second, verb in BESIDE.items():
        for point in points(None):
            with judged(f"{first}, stopped {point}, {second}"):
                runners = overdue_with_a_lapsed_leader()
                verbs = SCHEDULER_VERBS[first], verb
                calls = (partial(unless_it_lost, verb, *runners) for verb in verbs)
                interleave(*calls, point)
                fire_the_rest()


@needs_its_session
@pytest.mark.parametrize("second", LONG_SCHEDULER_VERBS)
@pytest.mark.parametrize("first", LONG_SCHEDULER_VERBS)
def test_two_schedulers_can_stop_each_other_in_turn_and_fire_once(first, second, judged):
    verbs = SCHEDULER_VERBS[first], BESIDE[second]

    def calls():
        runners = overdue_with_a_lapsed_leader()
        return [partial(unless_it_lost, verb, *runners) for verb in verbs]

    in_turn(judged, calls, f"{first}, {second}", fire_the_rest)


@pytest.mark.parametrize("verb", SCHEDULER_VERBS)
def test_a_conflict_at_any_statement_of_a_scheduler_is_tried_again(verb, judged):
    for point in points(raise_conflict):
        if point.when == "before":
            with judged(point):
                runners = overdue_with_a_lapsed_leader()
                with point.here():
                    unless_it_lost(SCHEDULER_VERBS[verb], *runners)
                fire_the_rest()


@needs_its_session
@pytest.mark.parametrize("verb", SCHEDULER_VERBS)
def test_a_scheduler_can_lose_its_connection_anywhere_and_fire_once(verb, judged, only_on):
    only_on("postgresql", "mysql")
    for point in points(lose_connection):
        with judged(point):
            runners = overdue_with_a_lapsed_leader()
            with suppress(Error), point.here():
                unless_it_lost(SCHEDULER_VERBS[verb], *runners)
            drop(connection)
            fire_the_rest()


@pytest.mark.parametrize("verb", SCHEDULER_VERBS)
def test_a_scheduler_can_be_killed_anywhere_and_fire_once(verb, judged):
    def run(point, runners):
        with point.here():
            unless_it_lost(SCHEDULER_VERBS[verb], *runners)

    for point in points(kill_process):
        with judged(point):
            runners = overdue_with_a_lapsed_leader()
            point.reached = in_a_fork(partial(run, point, runners)) == KILLED
            fire_the_rest()
