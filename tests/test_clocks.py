"""A process whose clock is wrong steals nothing, runs nothing early, and fires no boundary twice."""

from datetime import datetime, timedelta, timezone
from itertools import cycle, islice, pairwise
from pathlib import Path

import pytest

from django_alkstore import models, outbox, queue, schedule, sql
from django_alkstore.names import SCHEDULER_LOCK
from django_alkstore.scheduler import Scheduler

from .factories import Instant, JobFactory, LockFactory, ScheduleFactory, ago, aware
from .processes import across_connections, until

pytestmark = across_connections

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
LETTERS = outbox("letters").queue.name


def with_a_clock_of_its_own(tmp_path):
    """The environment of a process whose wall clock libfaketime shows it."""
    if FAKETIME is None:
        pytest.skip("needs Debian's faketime")
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "SHOP_EXTRA_APPS": "tests.receiving",
        "RECEIVING_JOURNAL": str(tmp_path / "journal.txt"),
    }


# -- on a server, whose clock decides -------------------------------------------------------------


@pytest.fixture(params=["+90s", "-90s"])
def start_with_wrong_clock(request, start, tmp_path, only_on):
    """Start a command whose process clock is 90 s ahead, or behind."""
    only_on("postgresql", "mysql")
    env = with_a_clock_of_its_own(tmp_path) | {"FAKETIME": request.param}
    return lambda *args: start(*args, **env)


def test_a_worker_with_a_wrong_clock_takes_what_is_due_by_the_server(start_with_wrong_clock):
    held = JobFactory(queue=LETTERS, running=True, due_at=ago(-60))
    delayed = JobFactory(queue=LETTERS, scheduled=True)
    JobFactory(queue=LETTERS, payload="fine", expires_at=ago(-60), due_at=ago(-60))
    JobFactory(queue=LETTERS, payload="fine", running=True, due_at=ago(60))
    assert start_with_wrong_clock("run_outbox", "--burst").wait() == 0
    assert set(models.Job.objects.values_list("id", "state")) == {
        (held.id, "running"),
        (delayed.id, "scheduled"),
    }


def test_a_failed_job_waits_its_backoff_by_the_server(start_with_wrong_clock):
    job = JobFactory(queue=LETTERS, payload="fail_once", backoff=60)
    assert start_with_wrong_clock("run_outbox", "--burst").wait() == 0
    job.refresh_from_db()
    assert job.state == "scheduled"
    waits = aware(job.due_at) - sql.engine().clock()
    assert timedelta(seconds=30) < waits < timedelta(seconds=60)


def test_a_scheduler_with_a_wrong_clock_fires_what_is_due_by_the_server(start_with_wrong_clock):
    due = ScheduleFactory(next_fire_at=ago(30), spec="@every 1h")
    ScheduleFactory(next_fire_at=ago(-60), spec="@every 1h")
    assert start_with_wrong_clock("run_schedules", "--once").wait() == 0
    assert list(models.Fire.objects.values_list("schedule", "boundary")) == [
        (due.name, due.next_fire_at)
    ]


def test_a_scheduler_with_a_wrong_clock_does_not_take_a_lease_that_holds(start_with_wrong_clock):
    lease = LockFactory(name=SCHEDULER_LOCK)
    ScheduleFactory(overdue=True)
    assert start_with_wrong_clock("run_schedules", "--once").wait() == 1
    lease.refresh_from_db()
    assert (lease.token, models.Fire.objects.count()) == (1, 0)


def test_a_scheduler_with_a_wrong_clock_takes_a_lease_that_has_lapsed(start_with_wrong_clock):
    LockFactory(name=SCHEDULER_LOCK, expires_at=ago(30))
    ScheduleFactory(overdue=True)
    assert start_with_wrong_clock("run_schedules", "--once").wait() == 0
    assert models.Fire.objects.count() == 1


# -- on SQLite, where the clock of the host decides -----------------------------------------------


@pytest.fixture
def clock(monkeypatch, only_on):
    """The clock of the host: it stands until the test sets or moves it."""
    only_on("sqlite")

    class Clock:
        now = Instant(2026, 3, 1, 12, tzinfo=timezone.utc)

        def move(self, **by):
            self.now += timedelta(**by)

    clock = Clock()
    monkeypatch.setattr(sql, "utc_now", lambda: clock.now)
    return clock


@pytest.fixture
def leader(clock):
    """A scheduler that leads, of a schedule that fires each minute from a minute on."""
    ScheduleFactory(name="minutely", next_fire_at=clock.now + timedelta(minutes=1))
    scheduler = Scheduler()
    scheduler.lead()
    return scheduler


def boundaries():
    """Minutes after noon of the boundaries that fired; a second fire of one would be an error."""
    noon = Instant(2026, 3, 1, 12, tzinfo=timezone.utc)
    fired = models.Job.objects.order_by("scheduled_for").values_list("scheduled_for", flat=True)
    return [(at - noon) / timedelta(minutes=1) for at in fired]


def test_a_clock_set_back_two_hours_repeats_no_boundary(clock, leader):
    clock.move(minutes=2)
    leader.pass_once()
    clock.move(hours=-2)
    for _ in range(121):
        leader.pass_once()
        clock.move(minutes=1)
    leader.pass_once()
    assert boundaries() == [1, 2, 3]


def test_a_clock_set_back_is_not_slept_away(clock, leader):
    clock.move(hours=-2)
    leader.pass_once()
    assert leader._idle_seconds() > 3600
    assert 0 < leader._step() <= leader.renew_seconds


def test_jobs_are_served_while_the_clock_is_two_hours_back(clock):
    clock.move(hours=-2)
    id = queue("reports").enqueue("now")
    job = queue("reports").claim("a")
    assert (job.id, job.ack()) == (id, True)


def test_a_clock_a_day_ahead_catches_up_in_bounds_and_goes_on(clock, leader):
    clock.move(days=1)
    while leader.pass_once():
        pass
    clock.move(minutes=1)
    leader.pass_once()
    assert boundaries() == [*range(1, 65), 1441]
    assert list(models.Fire.objects.filter(skipped__gt=0).values_list("skipped", flat=True)) == [
        1440 - 64
    ]


def test_a_day_ahead_and_back_again_fires_no_boundary_twice(clock, leader):
    clock.move(days=1)
    leader.pass_once()
    clock.move(days=-1)
    for _ in range(5):
        clock.move(minutes=1)
        leader.pass_once()
    assert boundaries() == [*range(1, 65)]


def test_a_jittering_clock_fires_each_boundary_once(clock, leader):
    for jitter in islice(cycle([300, -300, 0, -150, 150]), 600):
        clock.move(seconds=1)
        steady, clock.now = clock.now, clock.now + timedelta(milliseconds=jitter)
        leader.pass_once()
        clock.now = steady
    clock.move(seconds=1)
    leader.pass_once()
    assert boundaries() == [*range(1, 11)]


def test_a_claim_made_by_a_clock_ahead_is_acked_after_it_is_set_right(clock):
    clock.move(days=1)
    queue("reports").enqueue("now")
    job = queue("reports").claim("a")
    clock.move(days=-1)
    assert (queue("reports").claim("b"), job.ack()) == (None, True)


# -- on SQLite, in processes that run while the clock is set --------------------------------------


class WallClock:
    """The clock of the host: of this process and of those that are started on it."""

    def __init__(self, path, monkeypatch):
        self.path = path
        self.monkeypatch = monkeypatch
        self.set(timedelta(0))

    def set(self, ahead):
        """``ahead`` of the true time from now on."""
        part = self.path.with_suffix(".part")
        part.write_text(f"{ahead.total_seconds():+f}\n")
        part.rename(self.path)
        self.monkeypatch.setattr(sql, "utc_now", lambda: datetime.now(timezone.utc) + ahead)


@pytest.fixture
def wall_clock(tmp_path, monkeypatch, only_on):
    only_on("sqlite")
    return WallClock(tmp_path / "clock", monkeypatch)


@pytest.fixture
def start_on_wall_clock(start, wall_clock, tmp_path):
    env = {"FAKETIME_TIMESTAMP_FILE": str(wall_clock.path), "FAKETIME_NO_CACHE": "1"}
    return lambda *args: start(*args, **with_a_clock_of_its_own(tmp_path) | env)


def fires_since(name, boundary):
    return models.Fire.objects.filter(schedule=name, boundary__gt=boundary).count()


each_step = pytest.mark.parametrize("ahead", [timedelta(hours=-2), timedelta(days=1)], ids=str)


@each_step
def test_an_idle_worker_serves_on_when_the_clock_is_set(ahead, wall_clock, start_on_wall_clock):
    start_on_wall_clock("run_outbox")
    outbox("letters").enqueue("fine")
    until(lambda: not models.Job.objects.exists())
    wall_clock.set(ahead)
    outbox("letters").enqueue("fine")
    outbox("letters").enqueue("fine", delay=0.2)
    until(lambda: not models.Job.objects.exists())


@each_step
def test_a_leader_fires_on_when_the_clock_is_set(ahead, wall_clock, start_on_wall_clock):
    schedule("before", "@every 1s", "reports")
    leader, standby = (start_on_wall_clock("run_schedules") for _ in range(2))
    until(lambda: models.Fire.objects.count() > 1)
    wall_clock.set(ahead)
    now = sql.utc_now()
    schedule("after", "@every 1s", "reports")
    until(lambda: fires_since("after", now) > 1)
    latest = models.Fire.objects.filter(schedule="after").latest("fired_at")
    assert aware(latest.fired_at) - now < timedelta(hours=1)  # by that clock
    wall_clock.set(timedelta(0))
    until(lambda: fires_since("before", now - ahead) > 1)
    assert [leader.terminate(), standby.terminate()] == [0, 0]
    fired = sorted(models.Fire.objects.values_list("schedule", "boundary", "job_id"))
    made = sorted(models.Job.objects.values_list("schedule", "scheduled_for", "id"))
    assert fired == made
    assert len({fire[:2] for fire in fired}) == len(fired)


def test_a_leader_whose_clock_jitters_fires_each_boundary_once(wall_clock, start_on_wall_clock):
    schedule("steady", "@every 1s", "reports")
    leader = start_on_wall_clock("run_schedules")
    jitter = cycle([300, -300, 0, -150, 150])

    def has_fired_enough():
        wall_clock.set(timedelta(milliseconds=next(jitter)))
        return models.Fire.objects.count() > 6

    until(has_fired_enough)
    assert leader.terminate() == 0
    fired = list(models.Fire.objects.order_by("boundary").values_list("boundary", flat=True))
    assert {after - before for before, after in pairwise(fired)} == {timedelta(seconds=1)}
    assert models.Job.objects.count() == len(fired)
