"""One fire per boundary: the tick, and leading, at verb level."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_alkstore import (
    InvalidOption,
    LeadershipLost,
    StopToken,
    fire_now,
    get_job,
    next_boundaries,
    queue,
    run_schedules,
    schedule,
    signals,
    timetables,
    unschedule,
    update_schedule,
)
from django_alkstore import scheduler as loop
from django_alkstore.models import Fire, Job, Lock, Schedule
from django_alkstore.names import SCHEDULER_LOCK
from django_alkstore.scheduler import Scheduler
from django_alkstore.status import is_well, snapshot

from .factories import FireFactory, Instant, LockFactory, ScheduleFactory, ago, aware
from .ledger import NOON, at, fired, jobs, tick_all
from .pauses import lose_connection
from .processes import across_connections, held, in_threads, until
from .races import RACER, open_gate

pytestmark = pytest.mark.django_db


TICK = (
    RACER
    + """
from datetime import datetime
from django_alkstore.scheduler import Scheduler
scheduler = Scheduler()
print("ready", flush=True)
for n in range(25):
    wait_for(f"round-{n}")
    scheduler.tick(datetime.fromisoformat((gates / f"round-{n}").read_text()))
    print(f"ticked {n};", flush=True)
"""
)


@contextmanager
def failing(table, error, verb="INSERT", times=10**9):
    """Let statements of this connection that change ``table`` raise ``error``."""
    left = [times]

    def wrapper(execute, sql, params, many, context):
        if sql.lstrip().startswith(verb) and table in sql and left[0]:
            left[0] -= 1
            raise error
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        yield


# -- the tick -------------------------------------------------------------------------------------


def test_a_due_schedule_enqueues_a_job_that_says_where_it_comes_from():
    ScheduleFactory(name="nightly", next_fire_at=NOON, payload={"kind": "stock"})
    Scheduler().tick(at(1))
    job = Job.objects.get()
    assert (job.queue, job.state, job.payload) == ("reports", "ready", {"kind": "stock"})
    assert (job.schedule, job.scheduled_for, job.run_at) == ("nightly", NOON, NOON)
    claimed = queue("reports").claim("worker")
    assert (claimed.schedule, claimed.scheduled_for, claimed.id) == ("nightly", NOON, job.id)


def test_the_ledger_says_which_job_was_fired_for_a_boundary_and_by_whom():
    ScheduleFactory(name="nightly", next_fire_at=NOON)
    scheduler = Scheduler()
    scheduler.lead()
    scheduler.tick(at(1))
    fire = Fire.objects.get()
    assert (fire.schedule, fire.boundary, fire.fired_at) == ("nightly", NOON, at(1))
    assert (fire.job_id, fire.leader) == (Job.objects.get().id, scheduler.lease.owner)
    assert fire.skipped == 0


def test_a_schedule_that_is_not_due_yet_fires_nothing():
    ScheduleFactory(next_fire_at=at(0.001))
    Scheduler().tick(NOON)
    assert (jobs(), fired()) == ([], [])


def test_a_disabled_schedule_fires_nothing():
    ScheduleFactory(next_fire_at=NOON, enabled=False)
    Scheduler().tick(at(60))
    assert (jobs(), fired()) == ([], [])


def test_boundaries_of_a_clock_are_where_it_says_however_late_the_ticks():
    ScheduleFactory(name="drifting", spec="@cron * * * * *", next_fire_at=NOON)
    scheduler = Scheduler()
    for n in range(30):
        scheduler.tick(at(60 * n + 0.3 * n))
    assert fired() == [60 * k for k in range(30)]


def test_boundaries_are_the_first_plus_whole_intervals_however_late_the_ticks():
    ScheduleFactory(name="drifting", next_fire_at=at(0.25))
    scheduler = Scheduler()
    for n in range(30):
        scheduler.tick(at(0.25 + 60 * n + 0.3 * n))
    assert fired() == [0.25 + 60 * k for k in range(30)]


each_minutely = pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
each_secondly = pytest.mark.parametrize("spec", ["@every 1s", "@cron * * * * * *"])


@each_minutely
def test_boundaries_missed_in_a_stall_fire_once_each(spec):
    ScheduleFactory(name="minutely", spec=spec, next_fire_at=at(60))
    tick_all(at(190))
    tick_all(at(191))
    assert jobs() == fired() == [60, 120, 180]
    row = Schedule.objects.get()
    assert (row.last_fired_at, row.next_fire_at) == (at(180), at(240))


@each_secondly
def test_a_long_outage_fires_64_boundaries_and_the_ledger_counts_the_rest(spec):
    ScheduleFactory(name="fast", spec=spec, next_fire_at=NOON)
    tick_all(at(999.5))
    tick_all(at(999.5))
    assert jobs() == fired() == list(range(64))
    assert list(Fire.objects.exclude(skipped=0).values_list("boundary", "skipped")) == [
        (at(63), 936)
    ]
    assert Schedule.objects.get().next_fire_at == at(1000)


@each_minutely
def test_a_schedule_set_back_a_year_catches_up_and_goes_on(spec):
    ScheduleFactory(name="minutely", spec=spec, next_fire_at=NOON - timedelta(days=365))
    tick_all(NOON)
    tick_all(at(60))
    assert len(jobs()) == 65
    assert fired()[-1] == 60


@each_minutely
def test_a_schedule_set_back_fires_no_boundary_again(spec):
    ScheduleFactory(name="minutely", spec=spec, next_fire_at=NOON)
    tick_all(at(180))
    Schedule.objects.update(next_fire_at=NOON)
    tick_all(at(240))
    assert jobs() == fired() == [0, 60, 120, 180, 240]


@each_secondly
def test_a_schedule_set_back_keeps_a_true_count_of_what_was_skipped(spec):
    ScheduleFactory(name="fast", spec=spec, next_fire_at=NOON)
    for second in range(100):
        FireFactory(schedule="fast", boundary=at(second))
    tick_all(at(199.5))
    assert (jobs(), len(fired())) == ([], 100)
    assert list(Fire.objects.exclude(skipped=0).values_list("boundary", "skipped")) == [
        (at(63), 100)
    ]
    assert Schedule.objects.get().last_fired_at is None


def test_a_schedule_made_anew_does_not_fire_what_the_ledger_has():
    ScheduleFactory(name="minutely", next_fire_at=NOON)
    tick_all(at(60))
    unschedule("minutely")
    ScheduleFactory(name="minutely", next_fire_at=at(60))
    tick_all(at(120))
    assert jobs() == fired() == [0, 60, 120]


def test_a_schedule_without_a_next_boundary_is_given_one():
    ScheduleFactory(spec="@every 1m", next_fire_at=None)
    Scheduler().tick(NOON)
    assert (Schedule.objects.get().next_fire_at, jobs()) == (at(60), [])


def test_a_disabled_schedule_without_a_next_boundary_is_left_alone():
    ScheduleFactory(next_fire_at=None, enabled=False)
    Scheduler().tick(NOON)
    assert Schedule.objects.get().next_fire_at is None


@pytest.mark.parametrize(
    ("vendor", "stored"),
    [
        ("postgresql", "infinity"),
        ("postgresql", "-infinity"),
        ("postgresql", "20000-01-01"),
        ("sqlite", "soon"),
        ("sqlite", ""),
        ("mysql", "9999-12-31 23:59:59"),
    ],
)
def test_a_boundary_that_is_no_instant_is_replaced(vendor, stored, only_on):
    only_on(vendor)
    row = ScheduleFactory(spec="@every 1m")
    set_by_hand("next_fire_at", stored, row)
    Scheduler().tick(NOON)
    assert Schedule.objects.get().next_fire_at == at(60)


def test_a_boundary_that_nobody_can_read_pauses_its_schedule_and_no_other(only_on):
    only_on("sqlite")
    set_by_hand("next_fire_at", "2023-99-99 00:00:00", ScheduleFactory(name="odd"))
    ScheduleFactory(name="good", next_fire_at=NOON)
    tick_all(NOON)
    assert (fired("good"), fired("odd")) == ([0], [])


@pytest.mark.parametrize("text", ["9000-99-99 00:00:00", "2024-03-01T", "{:%Y-%m-%d}T00:00:00"])
def test_a_boundary_that_nobody_can_read_neither_stops_the_loop_nor_makes_it_spin(text, only_on):
    only_on("sqlite")
    set_by_hand("next_fire_at", text.format(ago(0)), ScheduleFactory(name="odd"))
    stop = Passes(3)
    run_schedules(stop)
    assert all(seconds > 0.4 for seconds in stop.waits)


def set_by_hand(column, value, row):
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE django_alkstore_schedule SET {column} = %s WHERE id = %s", [value, row.id]
        )


def test_more_due_schedules_than_one_batch_all_fire_once():
    ScheduleFactory.create_batch(120, next_fire_at=NOON)
    for minute in range(3):
        tick_all(at(60 * minute))
    assert sorted(jobs()) == sorted(fired()) == sorted([0, 60, 120] * 120)


def test_the_oldest_boundaries_fire_first(monkeypatch):
    monkeypatch.setattr(loop, "SCHEDULES_PER_TICK", 2)
    for name, seconds in [("c", 3), ("a", 1), ("b", 2)]:
        ScheduleFactory(name=name, next_fire_at=at(seconds))
    assert Scheduler().tick(at(10)) is True
    assert (fired("a"), fired("b"), fired("c")) == ([1], [2], [])


@each_minutely
def test_editing_a_schedule_just_before_the_boundary_makes_no_other_miss_it(spec):
    ScheduleFactory.create_batch(20, spec=spec, next_fire_at=at(60))
    ScheduleFactory(name="edited", spec=spec, next_fire_at=at(60))
    for minute in range(1, 6):
        tick_all(at(60 * minute - 0.1))
        schedule("edited", spec, "reports", minute)
        update_schedule("edited", priority=minute)
        tick_all(at(60 * minute))
    assert len(jobs()) == len(fired()) == 21 * 5


def test_500_schedules_of_one_minute_all_fire_each_minute_and_once():
    rows = ScheduleFactory.build_batch(500, spec="@cron * * * * *", next_fire_at=NOON)
    Schedule.objects.bulk_create(rows)
    for minute in range(3):
        tick_all(at(60 * minute))
    assert Job.objects.count() == Fire.objects.count() == 1_500
    assert Fire.objects.values("schedule", "boundary").distinct().count() == 1_500


def test_many_schedules_with_a_backlog_neither_starve_a_normal_one_nor_cost_the_lease():
    first = ago(1_000)
    rows = ScheduleFactory.build_batch(60, spec="@cron * * * * * *", next_fire_at=first)
    Schedule.objects.bulk_create(rows)
    ScheduleFactory(name="normal", overdue=True)
    scheduler = Scheduler()
    scheduler.lead()
    token = scheduler.lease.token
    scheduler.pass_once()
    scheduler.pass_once()
    assert len(fired("normal")) == 1
    late = Job.objects.filter(scheduled_for__lt=first + timedelta(seconds=500))
    assert late.count() == 60 * 64
    assert (Lock.objects.get(name=SCHEDULER_LOCK).token, scheduler.lease.renew()) == (token, True)


# -- options --------------------------------------------------------------------------------------


def fire_one(**columns):
    ScheduleFactory(next_fire_at=NOON, **columns)
    Scheduler().tick(NOON)
    return get_job(Fire.objects.get().job_id)


def test_a_fired_job_carries_the_target_queues_defaults():
    job = fire_one()
    assert (job.visibility_timeout, job.max_attempts, job.backoff) == (300, 3, 5)
    assert (job.expires_at, job.priority, job.due_at) == (None, 0, None)


def test_a_fired_job_carries_what_settings_say_about_its_queue(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"visibility_timeout": 30, "max_attempts": 9}}}
    job = fire_one()
    assert (job.visibility_timeout, job.max_attempts, job.backoff) == (30, 9, 5)


def test_the_schedules_options_win_over_settings(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"max_attempts": 9, "priority": 3, "backoff": 7}}}
    job = fire_one(max_attempts=1, visibility_timeout=0.5, expires_in=60)
    assert (job.max_attempts, job.visibility_timeout, job.priority, job.backoff) == (1, 0.5, 3, 7)
    assert job.expires_at == at(60)


def test_zero_is_an_option_and_not_a_missing_one(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"priority": 3, "backoff": 7, "expires_in": 60}}}
    job = fire_one(priority=0, backoff=0, expires_in=0)
    assert (job.priority, job.backoff, job.expires_at) == (0, 0, NOON)


def test_jobs_that_expire_do_not_pile_up_while_no_worker_runs():
    ScheduleFactory(spec="@every 10s", expires_in=10, next_fire_at=ago(605))
    tick_all(None)
    assert Job.objects.count() == 61
    assert len(queue("reports").claim_batch("worker", 100)) == 1
    assert Job.objects.filter(state="dead").count() == 60


@pytest.mark.parametrize("overlap", ["allow", "skip"])
@pytest.mark.parametrize("spec", ["@every 10s", "@cron */10 * * * * *"])
def test_after_an_hour_without_a_worker_an_expiry_of_one_interval_leaves_two_jobs_at_most(
    spec, overlap
):
    hour_ago = ago(3_600).replace(microsecond=0)
    row = ScheduleFactory(spec=spec, expires_in=10, overlap=overlap,
                          next_fire_at=hour_ago - timedelta(seconds=hour_ago.second % 10))  # fmt: skip
    for n in range(361):
        tick_all(row.next_fire_at + timedelta(seconds=10 * n))
    assert Job.objects.count() == 361
    assert len(queue("reports").claim_batch("worker", 1_000)) <= 2
    assert Job.objects.filter(state="dead", last_error__contains="expired").count() >= 359


def test_a_job_of_a_late_boundary_expires_as_if_it_had_been_fired_in_time():
    ScheduleFactory(spec="@cron 0 12 * * *", timezone="UTC", expires_in=3_600, next_fire_at=NOON)
    tick_all(at(600))
    job = Job.objects.get()
    assert (job.scheduled_for, job.expires_at) == (NOON, at(3_600))


def test_fired_jobs_are_claimed_in_the_order_of_their_boundaries():
    ScheduleFactory(spec="@cron * * * * * *", next_fire_at=NOON)
    tick_all(at(20))
    claimed = queue("reports").claim_batch("worker", 100)
    assert [job.scheduled_for for job in claimed] == [at(n) for n in range(21)]


def test_without_time_zones_in_settings_boundaries_are_the_same_instants(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "America/Los_Angeles"
    row = schedule("minutely", "@every 1m", "reports")
    assert row.next_fire_at - row.created_at == timedelta(minutes=1)
    now = Scheduler().engine.clock()
    tick_all(now + timedelta(seconds=185))
    settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
    lateness = [
        b - now for b in Fire.objects.order_by("boundary").values_list("boundary", flat=True)
    ]
    assert [round(late.total_seconds(), -1) for late in lateness] == [60, 120, 180]


MATRIX = [(use_tz, zone) for use_tz in (True, False)
          for zone in ("UTC", "Europe/Moscow", "America/Los_Angeles")]  # fmt: skip


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
@pytest.mark.parametrize(("use_tz", "zone"), MATRIX)
def test_whatever_settings_say_of_time_zones_three_minutes_are_three_boundaries(
    settings, use_tz, zone, spec
):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    schedule("minutely", spec, "reports")
    first = Scheduler().engine.read(Scheduler().engine.schedule_named("minutely").seen)
    for seconds in (-1, 0, 0, 61, 179):
        tick_all(first + timedelta(seconds=seconds))
    settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
    wanted = [first + timedelta(minutes=n) for n in range(3)]
    assert list(Fire.objects.order_by("boundary").values_list("boundary", flat=True)) == wanted
    assert sorted(Job.objects.values_list("run_at", "scheduled_for")) == [(b, b) for b in wanted]


def test_without_time_zones_in_settings_a_clock_is_still_the_projects(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    schedule("morning", "@cron 0 9 * * *", "reports")
    engine = Scheduler().engine
    first = engine.read(engine.schedule_named("morning").seen)
    assert f"{first:%H:%M %Z}" == "03:30 UTC"
    tick_all(first)
    settings.USE_TZ, settings.TIME_ZONE = True, "UTC"
    assert Fire.objects.get().boundary == first


PASSES = {"first": "2025-11-02T05:30+00:00", "second": "2025-11-02T06:30+00:00"}


@pytest.mark.parametrize("stored", PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("starts", ["05:10", "05:40", "06:10", "06:40"])
def test_a_boundary_stored_in_an_hour_that_comes_twice_is_neither_fatal_nor_repeated(
    stored, starts
):
    stored = datetime.fromisoformat(stored)
    now = datetime.fromisoformat(f"2025-11-02T{starts}+00:00")
    ScheduleFactory(spec="@cron 30 1 * * *", timezone="America/New_York", next_fire_at=stored,
                    last_fired_at=stored - timedelta(days=1))  # fmt: skip
    tick_all(now)
    tick_all(now)
    row = Schedule.objects.get()
    assert aware(row.next_fire_at) > now
    first = Instant.fromisoformat(PASSES["first"])
    assert list(Fire.objects.values_list("boundary", flat=True)) == (
        [first] if stored == first <= now else []
    )
    tick_all(datetime(2025, 11, 3, 6, 30, tzinfo=timezone.utc))
    assert Fire.objects.filter(boundary__gte=stored).count() == 1 + (stored == first)


def test_a_pending_boundary_that_is_none_of_the_changed_clock_is_passed_by(settings):
    ScheduleFactory(name="morning", spec="@cron 0 9 * * *", next_fire_at=at(-3 * 3_600))
    settings.TIME_ZONE = "Asia/Kolkata"
    tick_all(NOON)
    row = Schedule.objects.get()
    assert (fired(), row.next_fire_at) == ([], Instant(2024, 3, 2, 3, 30, tzinfo=timezone.utc))
    tick_all(row.next_fire_at)
    assert jobs() == fired() == [15.5 * 3_600]


def test_a_pending_boundary_that_is_none_of_the_changed_clock_is_no_next_boundary(settings):
    ScheduleFactory(name="morning", spec="@cron 0 9 * * *", next_fire_at=at(-3 * 3_600))
    settings.TIME_ZONE = "Asia/Kolkata"
    assert f"{next_boundaries('morning', 1)[0]:%d %H:%M %Z}" == "02 09:00 IST"


# -- what was missed ------------------------------------------------------------------------------


def ledger(name=None):
    """Fires in order: the boundary, whether it has a job, and how many were dropped."""
    rows = Fire.objects.filter(schedule=name) if name else Fire.objects.all()
    return [((fire.boundary - NOON).total_seconds(), fire.job_id is not None, fire.skipped)
            for fire in rows.order_by("boundary")]  # fmt: skip


@each_secondly
def test_latest_fires_the_last_and_the_ledger_says_what_was_dropped_from_where(spec, caplog):
    ScheduleFactory(name="fast", spec=spec, catch_up="latest", next_fire_at=NOON)
    tick_all(at(999.5))
    tick_all(at(999.5))
    assert ledger() == [(0, False, 999), (999, True, 0)]
    assert set(Fire.objects.values_list("why", flat=True)) == {"missed", ""}
    row = Schedule.objects.get()
    assert (row.next_fire_at, row.last_fired_at, row.fires) == (at(1_000), at(999), 1)
    assert caplog.text.count("schedule fast skipped 999 boundaries from") == 1


@each_minutely
def test_none_drops_what_is_late_and_fires_what_a_successor_finds(spec):
    ScheduleFactory(name="minutely", spec=spec, catch_up="none", next_fire_at=NOON)
    tick_all(at(200))
    assert ledger() == [(0, False, 3), (180, True, 0)]
    tick_all(at(271))
    assert ledger()[2:] == [(240, False, 1)]
    assert jobs() == [180]


def test_three_leases_are_in_time_where_that_is_longer(settings):
    settings.ALKSTORE = {"LEASE_SECONDS": 60}
    ScheduleFactory(spec="@every 10m", catch_up="none", next_fire_at=NOON)
    Scheduler().tick(at(179))
    ScheduleFactory(spec="@every 10m", catch_up="none", next_fire_at=NOON)
    Scheduler().tick(at(181))
    assert ledger() == [(0, True, 0), (0, False, 1)] or ledger() == [(0, False, 1), (0, True, 0)]


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_a_schedule_set_back_drops_and_fires_nothing_twice(catch_up):
    ScheduleFactory(name="minutely", catch_up=catch_up, next_fire_at=NOON)
    tick_all(at(300))
    before = ledger()
    Schedule.objects.update(next_fire_at=NOON)
    tick_all(at(300))
    assert ledger() == before
    assert Schedule.objects.get().next_fire_at == at(360)


def test_a_schedule_that_was_set_back_a_year_fires_what_its_catch_up_asks_for():
    for catch_up in timetables.CATCH_UPS:
        ScheduleFactory(name=catch_up, catch_up=catch_up, spec="@cron * * * * *",
                        next_fire_at=NOON - timedelta(days=365))  # fmt: skip
    tick_all(at(20))
    tick_all(at(60))
    assert {name: len(jobs(name)) for name in timetables.CATCH_UPS} == {
        "all": 65, "latest": 2, "none": 2,
    }  # fmt: skip


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_a_failing_insert_leaves_no_word_of_what_was_dropped(catch_up):
    ScheduleFactory(catch_up=catch_up, next_fire_at=NOON)
    with failing("django_alkstore_job", IntegrityError("refused")):
        Scheduler().tick(at(301))
    assert (ledger(), Schedule.objects.get().next_fire_at) == ([], NOON)


# -- what meets a job that is alive ---------------------------------------------------------------


def end(boundary):
    """The job of a boundary ends."""
    Job.objects.filter(scheduled_for=boundary).delete()


LIVES = {
    "ready": {"state": "ready"},
    "delayed": {"state": "scheduled", "run_at": ago(-600), "due_at": ago(-600)},
    "running": {"state": "running", "claim_token": 1, "due_at": ago(-600)},
    "running longer than its claim": {"state": "running", "claim_token": 1, "due_at": ago(600)},
    "running and past its expiry": {"state": "running", "expires_at": NOON, "due_at": ago(-600)},
    "to expire": {"expires_at": ago(-600), "due_at": ago(-600)},
}
ENDED = {
    "done": {"state": "done", "finished_at": NOON},
    "dead": {"state": "dead", "finished_at": NOON},
    "expired": {"expires_at": NOON, "due_at": NOON},
    "delayed and expired": {"state": "scheduled", "run_at": NOON, "due_at": NOON,
                            "expires_at": NOON},
}  # fmt: skip


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_skip_drops_boundaries_while_the_last_job_lives(life):
    ScheduleFactory(name="minutely", overlap="skip", next_fire_at=NOON)
    tick_all(NOON)
    Job.objects.update(**life)
    tick_all(at(60))
    tick_all(at(190))
    assert (jobs(), ledger()) == ([0], [(0, True, 0), (60, False, 1), (120, False, 2)])
    assert set(Fire.objects.exclude(skipped=0).values_list("why", flat=True)) == {
        "the last job was alive"
    }
    assert Schedule.objects.get().fires == 1
    end(NOON)
    tick_all(at(240))
    assert jobs() == [240]


@pytest.mark.parametrize("overlap", ["skip", "queue"])
@pytest.mark.parametrize("life", ENDED.values(), ids=ENDED)
def test_a_job_that_has_come_to_an_end_is_in_nobodys_way(life, overlap):
    ScheduleFactory(overlap=overlap, next_fire_at=NOON)
    tick_all(NOON)
    Job.objects.update(**life)
    tick_all(at(60))
    assert ledger() == [(0, True, 0), (60, True, 0)]


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_a_job_that_a_person_fired_is_in_the_way_too(overlap):
    ScheduleFactory(name="minutely", overlap=overlap, next_fire_at=NOON)
    job_id = fire_now("minutely")
    tick_all(NOON)
    assert Job.objects.count() == 1
    Job.objects.filter(id=job_id).delete()
    tick_all(at(60))
    assert jobs() == ([60] if overlap == "skip" else [0])


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_another_schedules_job_is_in_nobodys_way(overlap):
    ScheduleFactory(name="one", overlap=overlap, next_fire_at=NOON)
    ScheduleFactory(name="two", overlap=overlap, next_fire_at=NOON)
    tick_all(NOON)
    Job.objects.filter(schedule="two").delete()
    tick_all(at(60))
    assert (jobs("one"), jobs("two")) == ([0], [60])


def test_skip_makes_up_for_one_of_those_that_were_missed_and_says_so():
    ScheduleFactory(overlap="skip", next_fire_at=NOON)
    tick_all(at(300))
    assert ledger() == [(0, True, 5)]


@each_minutely
def test_queue_lets_a_boundary_wait_until_the_last_job_ends(spec):
    ScheduleFactory(spec=spec, overlap="queue", next_fire_at=NOON)
    tick_all(NOON)
    tick_all(at(60))
    tick_all(at(190))
    assert (jobs(), ledger()) == ([0], [(0, True, 0)])
    for seconds in (60, 120, 180):
        end(at(seconds - 60))
        tick_all(at(190))
        assert jobs() == [seconds]
    end(at(180))
    tick_all(at(190))
    assert (jobs(), fired(), Schedule.objects.get().next_fire_at) == (
        [], [0, 60, 120, 180], at(240),
    )  # fmt: skip
    assert not Fire.objects.filter(skipped__gt=0).exists()


def test_queue_lets_no_more_than_64_wait():
    ScheduleFactory(spec="@every 1s", overlap="queue", next_fire_at=NOON)
    tick_all(at(100))
    assert (jobs(), Schedule.objects.get().next_fire_at) == ([37], at(38))
    assert ledger() == [(0, False, 37), (37, True, 0)]


def test_of_what_waited_latest_fires_the_last_alone():
    ScheduleFactory(overlap="queue", catch_up="latest", next_fire_at=NOON)
    tick_all(NOON)
    for minute in range(1, 5):
        tick_all(at(60 * minute))
    end(NOON)
    tick_all(at(250))
    assert ledger() == [(0, True, 0), (60, False, 3), (240, True, 0)]


@each_minutely
def test_a_boundary_that_waits_costs_no_write_and_makes_nothing_spin(spec):
    first = ago(300).replace(second=0, microsecond=0)
    ScheduleFactory(spec=spec, overlap="queue", next_fire_at=first)
    scheduler = Scheduler()
    scheduler.tick(first)
    with CaptureQueriesContext(connection) as sent:
        assert scheduler.tick() is False
    assert {query["sql"].split()[0] for query in sent} <= {
        "SELECT",
        "BEGIN",
        "SAVEPOINT",
        "RELEASE",
    }
    stop = Passes(3)
    run_schedules(stop)
    assert all(seconds > 0.4 for seconds in stop.waits)
    assert len(jobs()) == 1


def test_a_boundary_that_waits_is_late_to_nobody(client):
    ScheduleFactory(name="waits", overlap="queue", next_fire_at=ago(3_600))
    Scheduler().tick()
    Job.objects.update(state="running", claim_token=1, due_at=ago(-60))
    (seen,) = snapshot().schedules
    assert (seen.waits, seen.late_seconds, snapshot().warnings) == (True, 0.0, [])
    assert is_well() is None
    assert client.get("/alkstore/health/").status_code == 200
    Job.objects.all().delete()
    assert client.get("/alkstore/health/").status_code == 503


def test_schedules_that_wait_do_not_starve_those_behind_them(monkeypatch):
    monkeypatch.setattr(loop, "SCHEDULES_PER_TICK", 2)
    ScheduleFactory.create_batch(5, overlap="queue", next_fire_at=at(-120))
    tick_all(at(-120))
    ScheduleFactory(name="behind", next_fire_at=NOON)
    tick_all(NOON)
    assert fired("behind") == [0]


@across_connections
@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_threads_that_tick_at_once_let_one_job_live_at_a_time(overlap):
    ScheduleFactory(name="minutely", overlap=overlap, next_fire_at=NOON)
    barrier = threading.Barrier(6)

    def race(now):
        barrier.wait(30)
        Scheduler().tick(now)

    for minute in range(4):
        in_threads(*[partial(race, at(60 * minute))] * 6)
    assert jobs() == [0]
    end(NOON)
    in_threads(*[partial(race, at(240))] * 6)
    assert jobs() == [60 if overlap == "queue" else 240]


# -- jitter ---------------------------------------------------------------------------------------


def test_a_job_runs_up_to_its_jitter_after_the_boundary_that_it_is_for():
    first = aware(ago(-3_600))
    ScheduleFactory(name="nightly", jitter=600, expires_in=900, next_fire_at=first)
    Scheduler().tick(first)
    job = Job.objects.get()
    assert (aware(job.scheduled_for), job.state) == (first, "scheduled")
    assert aware(job.run_at) == timetables.jittered("nightly", first, 600)
    assert first < aware(job.run_at) < first + timedelta(minutes=10)
    assert job.due_at == job.run_at
    assert job.expires_at == job.run_at + timedelta(minutes=15)


def test_jitter_moves_no_boundary():
    ScheduleFactory(spec="@cron * * * * *", jitter=3_600, next_fire_at=NOON)
    for minute in range(4):
        tick_all(at(60 * minute))
    assert jobs() == fired() == [0, 60, 120, 180]
    assert Schedule.objects.get().next_fire_at == at(240)


def test_a_jitter_that_has_passed_delays_nothing():
    ScheduleFactory(jitter=30, next_fire_at=ago(90))
    Scheduler().tick()
    assert len(queue("reports").claim_batch("worker", 5)) == 2


# -- begin and end --------------------------------------------------------------------------------


@each_minutely
def test_a_schedule_fires_from_its_start_to_its_end_and_has_ended(spec):
    ScheduleFactory(spec=spec, starts_at=at(120), ends_at=at(240), next_fire_at=None)
    for minute in range(8):
        tick_all(at(60 * minute))
    row = Schedule.objects.get()
    assert jobs() == fired() == [120, 180, 240]
    assert (row.next_fire_at, row.ended_at is None, row.fires) == (None, False, 3)
    assert row.last_fired_at == at(240)


@each_minutely
def test_a_schedule_that_may_fire_so_often_fires_so_often_and_has_ended(spec):
    ScheduleFactory(spec=spec, max_fires=3, next_fire_at=NOON)
    tick_all(at(60))
    tick_all(at(600))
    row = Schedule.objects.get()
    assert jobs() == fired() == [0, 60, 120]
    assert (row.next_fire_at, row.ended_at is None, row.fires) == (None, False, 3)
    assert not Fire.objects.filter(skipped__gt=0).exists()


def test_an_ended_schedule_is_not_begun_anew_and_costs_no_write():
    ScheduleFactory(max_fires=1, next_fire_at=NOON)
    tick_all(NOON)
    ended = Schedule.objects.values().get()
    with CaptureQueriesContext(connection) as sent:
        for minute in range(1, 4):
            assert Scheduler().tick(at(60 * minute)) is False
    assert not [query for query in sent if query["sql"].startswith("UPDATE")]
    assert (Schedule.objects.values().get(), jobs()) == (ended, [0])


def test_a_schedule_set_back_still_fires_as_often_as_it_may():
    row = ScheduleFactory(name="nightly", max_fires=5, next_fire_at=NOON)
    tick_all(at(120))
    Schedule.objects.update(next_fire_at=NOON)
    tick_all(at(600))
    row.refresh_from_db()
    assert (fired(), row.fires, row.next_fire_at) == ([0, 60, 120, 180, 240], 5, None)


def test_a_schedule_that_was_never_dated_and_can_never_fire_ends():
    ScheduleFactory(ends_at=at(-60), next_fire_at=None)
    tick_all(NOON)
    row = Schedule.objects.get()
    assert (row.next_fire_at, row.ended_at is None) == (None, False)


def test_an_ended_schedule_whose_boundary_is_set_by_hand_fires_nothing():
    ScheduleFactory(max_fires=1, next_fire_at=NOON)
    tick_all(NOON)
    Schedule.objects.update(next_fire_at=at(60))
    tick_all(at(60))
    assert (jobs(), Schedule.objects.get().next_fire_at) == ([0], None)


def test_what_waits_beyond_the_last_fire_is_forgotten():
    ScheduleFactory(overlap="queue", max_fires=2, next_fire_at=NOON)
    tick_all(NOON)
    end(NOON)
    tick_all(at(300))
    assert (jobs(), Schedule.objects.get().next_fire_at) == ([60], None)


# -- schedules that cannot be fired ---------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": "@every 0s"},
        {"spec": "0 0 30 2 *"},
        {"spec": ""},
        {"queue": "__alkstore_outbox:receipts"},
        {"queue": "no spaces"},
        {"max_attempts": 0},
        {"visibility_timeout": -1},
        {"expires_in": -1},
        {"spec": "@cron 0 0 30 2 *"},
        {"spec": "@cron 0 0 31 4,6,9,11 *"},
        {"spec": "@cron 0 9 * * *", "timezone": "Nowhere/None"},
        {"timezone": "../etc/passwd"},
        {"catch_up": "x"},
        {"overlap": "x"},
        {"jitter": -1},
        {"max_fires": 0},
        {"starts_at": NOON, "ends_at": at(-1)},
    ],
)
def test_a_row_made_wrong_behind_our_back_is_logged_and_the_others_fire(wrong, caplog):
    ScheduleFactory(name="wrong", next_fire_at=at(-60), **wrong)
    ScheduleFactory(name="good", next_fire_at=NOON)
    tick_all(NOON)
    assert (fired("good"), fired("wrong"), jobs()) == ([0], [], [0])
    assert "schedule wrong cannot be fired" in caplog.text
    assert Schedule.objects.get(name="wrong").next_fire_at == at(-60)


def test_wrong_rows_that_fill_a_batch_do_not_starve_the_good_ones(monkeypatch):
    monkeypatch.setattr(loop, "SCHEDULES_PER_TICK", 2)
    ScheduleFactory.create_batch(2, spec="@never", next_fire_at=at(-60))
    ScheduleFactory.create_batch(2, spec="@never", next_fire_at=None)
    ScheduleFactory.create_batch(3, next_fire_at=NOON)
    tick_all(NOON)
    assert fired() == [0, 0, 0]


def test_a_schedule_that_cannot_be_fired_is_left_out_for_a_growing_while():
    row = ScheduleFactory(spec="@never", next_fire_at=NOON)
    scheduler = Scheduler()
    waits = []
    for _ in range(12):
        scheduler.tick(NOON)
        pause = scheduler.pauses[row.id]
        waits.append(round(pause.until - loop.time.monotonic()))
        pause.until = 0.0
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_a_schedule_that_has_failed_for_years_is_still_only_paused():
    row = ScheduleFactory(spec="@never", next_fire_at=NOON)
    scheduler = Scheduler()
    scheduler.tick(NOON)
    scheduler.pauses[row.id] = replace(scheduler.pauses[row.id], failures=10**6, until=0.0)
    scheduler.tick(NOON)
    assert scheduler.pauses[row.id].failures == 10**6 + 1


def test_a_paused_schedule_is_not_tried_again_by_the_next_tick(caplog):
    ScheduleFactory(spec="@never", next_fire_at=NOON)
    scheduler = Scheduler()
    scheduler.tick(NOON)
    scheduler.tick(NOON)
    assert caplog.text.count("cannot be fired") == 1


def test_a_paused_schedule_that_has_been_mended_fires_at_the_next_tick():
    row = ScheduleFactory(name="mended", spec="@never", next_fire_at=NOON)
    scheduler = Scheduler()
    scheduler.tick(NOON)
    set_by_hand("spec", "@every 1m", row)
    scheduler.tick(NOON)
    assert (fired(), scheduler.pauses) == ([0], {})


@pytest.mark.parametrize("table", ["django_alkstore_job", "django_alkstore_fire"])
def test_an_error_in_one_schedules_insert_undoes_it_whole_and_no_other(table):
    ScheduleFactory(name="bad", next_fire_at=at(-60))
    ScheduleFactory(name="good", next_fire_at=NOON)
    with failing(table, IntegrityError("refused"), times=1):
        tick_all(NOON)
    assert jobs() == fired() == fired("good") == [0]
    assert Schedule.objects.get(name="bad").next_fire_at == at(-60)


@pytest.mark.parametrize("verb, table", [("UPDATE", "schedule"), ("INSERT", "fire")])
def test_a_job_is_never_enqueued_without_its_bookkeeping(verb, table):
    ScheduleFactory(next_fire_at=NOON)
    with failing(f"django_alkstore_{table}", IntegrityError("refused"), verb):
        Scheduler().tick(NOON)
    assert (jobs(), fired(), Schedule.objects.get().next_fire_at) == ([], [], NOON)


def conflict():
    """What the database raises to have a transaction tried again."""
    if connection.vendor == "mysql":
        return OperationalError(1213, "Deadlock found")
    error = OperationalError("database is locked")
    error.sqlstate = "40001"
    return error


@across_connections
def test_a_tick_that_meets_a_conflict_is_tried_again_at_once():
    ScheduleFactory(next_fire_at=NOON)
    scheduler = Scheduler()
    with failing("django_alkstore_fire", conflict(), times=1):
        scheduler.tick(NOON)
    assert (jobs(), fired(), scheduler.pauses) == ([0], [0], {})


def test_a_large_payload_does_not_make_one_statement_of_its_whole_backlog():
    ScheduleFactory(spec="@every 1s", payload="x" * 500_000, next_fire_at=NOON)
    sizes = []

    def measure(execute, sql, params, many, context):
        if sql.startswith("\nINSERT INTO django_alkstore_job"):
            sizes.append(sql.count("%("))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(measure):
        Scheduler().tick(at(9))
    assert (jobs(), len(sizes)) == (list(range(10)), 5)


# -- one fire per boundary, with the lock bypassed ------------------------------------------------


@across_connections
def test_threads_that_tick_at_once_fire_a_boundary_once():
    ScheduleFactory(name="minutely", next_fire_at=NOON)
    barrier = threading.Barrier(10)

    def race(now):
        barrier.wait(30)
        Scheduler().tick(now)

    for minute in range(5):
        in_threads(*[partial(race, at(60 * minute))] * 10)
    assert jobs() == fired() == [0, 60, 120, 180, 240]


at_stricter_levels = pytest.mark.parametrize(
    "isolation", ["repeatable read", "serializable"], indirect=True
)


@across_connections
@at_stricter_levels
def test_threads_that_tick_at_once_fire_a_boundary_once_at_stricter_levels(isolation, only_on):
    only_on("postgresql", "mysql")
    ScheduleFactory.create_batch(3, next_fire_at=NOON)
    barrier = threading.Barrier(8)

    def race():
        scheduler = Scheduler()
        for minute in range(5):
            barrier.wait(30)
            scheduler.tick(at(60 * minute))

    in_threads(*[race] * 8)
    tick_all(at(240))
    assert sorted(jobs()) == sorted(fired()) == sorted([0, 60, 120, 180, 240] * 3)


@across_connections
@at_stricter_levels
def test_threads_that_register_at_once_agree_at_stricter_levels(isolation, only_on):
    only_on("postgresql", "mysql")

    def register(n):
        for minutes in range(1, 4):
            schedule("nightly", f"@every {minutes}m", "reports", n)

    in_threads(*[partial(register, n) for n in range(4)])
    assert Schedule.objects.get().spec == "@every 3m"


@across_connections
def test_processes_that_tick_at_once_fire_a_boundary_once(race, tmp_path):
    ScheduleFactory(name="minutely", next_fire_at=NOON)
    racers = race(TICK, 4)
    for n in range(25):
        open_gate(tmp_path / f"round-{n}", at(60 * n).isoformat())
        for racer in racers:
            racer.until_says(f"ticked {n};")
    assert jobs() == fired() == [60 * n for n in range(25)]


@across_connections
def test_schedules_that_somebody_edits_are_left_and_not_waited_for(only_on, own_transactions):
    only_on("postgresql", "mysql")
    edited = ScheduleFactory.create_batch(2, next_fire_at=at(-60))
    ScheduleFactory(name="free", next_fire_at=NOON)

    @contextmanager
    def editing():
        with transaction.atomic():
            Schedule.objects.filter(id__in=[row.id for row in edited]).update(priority=1)
            yield

    with held(editing):
        Scheduler().tick(NOON)
        assert (fired("free"), len(fired())) == ([0], 1)
    Scheduler().tick(NOON)
    assert fired() == [-60, -60, 0, 0, 0]


# -- leading --------------------------------------------------------------------------------------


@contextmanager
def running(stop=None):
    """run_schedules in a thread; what it returned or raised is in the list that this yields."""
    stop = stop or threading.Event()
    ended = []

    def run():
        try:
            ended.append(run_schedules(stop))
        except BaseException as exc:
            ended.append(exc)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: ended or leader())
        yield ended
    finally:
        stop.cancel() if isinstance(stop, StopToken) else stop.set()
        thread.join(30)
        assert not thread.is_alive(), "the loop does not stop"


class Passes:
    """A stop that lets so many passes go by without sleeping, and keeps what sleep they asked."""

    def __init__(self, many):
        self.many = many
        self.waits = []

    def is_set(self):
        return len(self.waits) >= self.many

    def wait(self, seconds):
        self.waits.append(seconds)
        return self.is_set()


def leader():
    """Who holds the lease; empty for nobody."""
    return Lock.objects.filter(name=SCHEDULER_LOCK).values_list("owner", flat=True).first() or ""


def take_over():
    """Another runner takes the lease, whoever has it."""
    lease = {"owner": "another:1:bb", "token": 99, "expires_at": ago(-60)}
    Lock.objects.filter(name=SCHEDULER_LOCK).update(**lease)
    return Lock.objects.values().get()


@across_connections
@pytest.mark.parametrize("stop", [StopToken, threading.Event])
def test_a_stopped_scheduler_returns_none_and_frees_the_lease(stop):
    with running(stop()) as ended:
        assert leader()
    assert (ended, leader()) == ([None], "")
    Scheduler().lead()


@across_connections
def test_a_stop_ends_even_the_longest_sleep(settings, monkeypatch):
    settings.ALKSTORE = {"LEASE_SECONDS": 36_000}
    monkeypatch.setattr(loop, "NOTICE_SECONDS", 3_600)
    with running() as ended:
        pass
    assert ended == [None]


@pytest.mark.parametrize("stop", [0, "now", lambda: False])
def test_a_stop_of_another_kind_is_refused_before_any_statement(stop, statements):
    with pytest.raises(InvalidOption, match="expected stop to be"):
        run_schedules(stop)
    assert len(statements) == 0


def test_a_scheduler_is_refused_while_another_leads_and_fires_nothing():
    ScheduleFactory(overdue=True)
    LockFactory(name=SCHEDULER_LOCK)
    with pytest.raises(LeadershipLost):
        run_schedules(Passes(1))
    assert (jobs(), fired(), leader()) == ([], [], "host:1:aa")


def test_a_lapsed_lease_is_taken():
    LockFactory(name=SCHEDULER_LOCK, expires_at=ago(1))
    run_schedules(Passes(1))
    assert leader() == ""


def test_a_lease_of_a_clock_that_has_been_set_back_since_is_taken_at_once():
    LockFactory(name=SCHEDULER_LOCK, acquired_at=ago(-7_190), expires_at=ago(-7_200))
    run_schedules(Passes(1))
    assert leader() == ""


def test_a_lease_somewhat_longer_than_ours_is_left_to_its_holder():
    LockFactory(name=SCHEDULER_LOCK, expires_at=ago(-90))
    with pytest.raises(LeadershipLost):
        run_schedules(Passes(1))


def test_two_runners_of_one_process_have_leases_of_their_own():
    Scheduler().lead()
    with pytest.raises(LeadershipLost):
        Scheduler().lead()


def test_a_leader_that_was_overtaken_writes_nothing():
    scheduler = Scheduler()
    scheduler.lead()
    ScheduleFactory(overdue=True)
    taken = take_over()
    assert scheduler.lease.renew() is False
    with pytest.raises(LeadershipLost):
        scheduler.fire_until(Passes(1))
    assert (jobs(), fired(), Lock.objects.values().get()) == ([], [], taken)


@across_connections
def test_a_leader_that_is_overtaken_in_mid_run_raises_before_it_fires():
    with running() as ended:
        with transaction.atomic():
            taken = take_over()
            ScheduleFactory(overdue=True)
        until(lambda: ended)
        assert isinstance(ended[0], LeadershipLost)
    assert (jobs(), fired(), Lock.objects.values().get()) == ([], [], taken)


def test_a_lapsed_lease_that_nobody_took_goes_on():
    scheduler = Scheduler()
    scheduler.lead()
    Lock.objects.update(expires_at=ago(3600))
    ScheduleFactory(overdue=True)
    scheduler.pass_once()
    assert len(jobs()) == 1
    assert Lock.objects.get().expires_at > ago(0)


@across_connections
def test_the_lease_is_not_renewed_by_a_tick_that_fails():
    scheduler = Scheduler()
    scheduler.lead()
    Lock.objects.update(expires_at=NOON)
    ScheduleFactory(overdue=True)
    full = OperationalError("disk full")
    with failing("django_alkstore_job", full), pytest.raises(OperationalError):
        scheduler.pass_once()
    assert (Lock.objects.get().expires_at, jobs()) == (NOON, [])


@across_connections
def test_nobody_takes_the_lease_of_a_leader_inside_its_tick_however_long_it_takes(only_on):
    only_on("postgresql", "mysql")
    scheduler = Scheduler()
    scheduler.lead()
    Lock.objects.update(expires_at=ago(60))

    @contextmanager
    def in_its_tick():
        with transaction.atomic():
            scheduler.pass_once()
            yield

    with held(in_its_tick), pytest.raises(LeadershipLost):
        Scheduler().lead()


# -- the loop -------------------------------------------------------------------------------------


def test_the_loop_sleeps_until_the_soonest_boundary():
    ScheduleFactory(next_fire_at=ago(-0.8))
    ScheduleFactory(next_fire_at=ago(-60))
    stop = Passes(1)
    run_schedules(stop)
    assert 0 < stop.waits[0] <= 0.8


def test_the_loop_looks_for_a_sooner_boundary_every_two_seconds():
    ScheduleFactory(next_fire_at=ago(-60))
    stop = Passes(3)
    run_schedules(stop)
    assert all(1 < seconds <= 2 for seconds in stop.waits)


def test_a_short_lease_is_renewed_five_times_while_it_lasts(settings):
    settings.ALKSTORE = {"LEASE_SECONDS": 1}
    stop = Passes(3)
    run_schedules(stop)
    assert all(0 < seconds <= 0.2 for seconds in stop.waits)


def test_a_long_tick_shortens_the_sleep_after_it(settings):
    settings.ALKSTORE = {"LEASE_SECONDS": 1}
    ScheduleFactory(overdue=True)
    stop = Passes(1)

    def slow(execute, sql, params, many, context):
        if "INTO django_alkstore_job" in sql:
            threading.Event().wait(0.3)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(slow):
        run_schedules(stop)
    assert stop.waits == [loop.SHORTEST_SLEEP]


def test_a_schedule_that_cannot_be_fired_does_not_make_the_loop_spin():
    ScheduleFactory(spec="@never", overdue=True)
    ScheduleFactory(spec="@never", next_fire_at=None)
    stop = Passes(4)
    run_schedules(stop)
    assert all(seconds > 0.4 for seconds in stop.waits)


@across_connections
def test_a_due_schedule_that_somebody_edits_does_not_make_the_loop_spin(only_on):
    only_on("postgresql", "mysql")
    ScheduleFactory(overdue=True)

    @contextmanager
    def editing():
        with transaction.atomic():
            Schedule.objects.update(priority=1)
            yield

    stop = Passes(3)
    with held(editing):
        run_schedules(stop)
    assert all(seconds > 0.4 for seconds in stop.waits)


def test_a_stop_is_looked_at_between_two_batches(monkeypatch):
    monkeypatch.setattr(loop, "SCHEDULES_PER_TICK", 2)
    ScheduleFactory.create_batch(5, overdue=True)
    run_schedules(Passes(2))
    assert len(jobs()) == 4


@across_connections
def test_a_schedule_inserted_by_any_route_is_noticed():
    with running():
        ScheduleFactory(name="late", overdue=True)
        minute = ago(1).replace(second=0, microsecond=0)
        ScheduleFactory(name="by the clock", spec="@cron * * * * *", next_fire_at=minute)
        until(lambda: fired("late") and fired("by the clock"))


def test_the_loop_keeps_no_query_log(settings):
    settings.DEBUG = True
    ScheduleFactory(overdue=True)
    run_schedules(Passes(3))
    assert len(connection.queries) < 10


@across_connections
def test_a_failing_schedule_goes_without_and_the_others_fire_whatever_the_error(monkeypatch):
    monkeypatch.setattr(timetables, "CATCH_UP", 1)
    ScheduleFactory(name="bad", queue="bad", next_fire_at=at(-60))
    ScheduleFactory(name="good", next_fire_at=NOON)

    def fail(execute, sql, params, many, context):
        if "INTO django_alkstore_job" in sql and "bad" in str(params):
            raise OperationalError(1644, "a trigger says no")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail):
        run_schedules(Passes(2))
    assert (fired("bad"), fired("good"), jobs()) == ([], [0], [0])


def raise_at(position):
    """Let the statement at that position, counted from 0, fail once; whether it came to that."""
    count = iter(range(10**9))
    reached = []

    def wrapper(execute, sql, params, many, context):
        if next(count) == position:
            reached.append(sql)
            raise OperationalError("the server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    return wrapper, reached


@across_connections
def test_whichever_statement_fails_the_boundary_fires_once(monkeypatch):
    monkeypatch.setattr(loop, "LONGEST_PAUSE", 0.001)
    for position in range(100):
        Fire.objects.all().delete()
        Job.objects.all().delete()
        Schedule.objects.all().delete()
        Lock.objects.all().delete()
        ScheduleFactory(overdue=True)
        scheduler = Scheduler()
        scheduler.lead()
        wrapper, reached = raise_at(position)
        with connection.execute_wrapper(wrapper):
            scheduler.fire_until(Passes(3))
        assert len(jobs()) == len(fired()) == 1, (position, reached)
        if not reached:
            break
    assert position > 10
    assert leader() == ""


class PassesThenCloses(Passes):
    """Closes the connection after the last pass: what was not committed is lost."""

    def wait(self, seconds):
        if super().wait(seconds):
            connection.close()
        return self.is_set()


@across_connections
@pytest.mark.parametrize("position", [10**9, 5])
def test_with_autocommit_off_in_settings_the_loop_commits_also_after_an_outage(
    monkeypatch, position
):
    ScheduleFactory(overdue=True)
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)

    def run():
        with connection.execute_wrapper(raise_at(position)[0]):
            run_schedules(PassesThenCloses(3))

    in_threads(run)
    assert (len(jobs()), len(fired()), leader()) == (1, 1, "")


def test_the_compare_and_set_lets_the_loser_fire_nothing():
    ScheduleFactory(next_fire_at=NOON)
    winner = iter([True])

    def overtake(execute, sql, params, many, context):
        if sql.startswith("UPDATE django_alkstore_schedule") and next(winner, False):
            Schedule.objects.update(next_fire_at=at(600))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(overtake):
        Scheduler().tick(NOON)
    assert (jobs(), fired(), Schedule.objects.get().next_fire_at) == ([], [], at(600))


@pytest.mark.parametrize("text", ["2024-03-01 12:00:00.000", "2024-03-01 12:00:00.000000"])
def test_the_compare_and_set_knows_a_boundary_that_another_hand_wrote(text):
    row = ScheduleFactory(next_fire_at=ago(0))
    zone = "+00" if connection.vendor == "postgresql" else ""  # elsewhere the column holds UTC
    set_by_hand("next_fire_at", text + zone, row)
    Scheduler().tick(at(1))
    assert (fired(), Schedule.objects.get().next_fire_at) == ([0], at(60))


@across_connections
def test_a_session_lost_beside_a_spoilt_schedule_undoes_the_tick_aloud(only_on):
    only_on("postgresql", "mysql")
    ScheduleFactory(name="good", next_fire_at=ago(60))
    ScheduleFactory(name="spoilt", spec="@never", next_fire_at=ago(30))
    told, left = [], [3]  # the block around, the good one's, the spoilt one's

    def kill_after_the_third_savepoint(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        if sql.startswith("SAVEPOINT") and left[0]:
            left[0] -= 1
            if not left[0]:
                lose_connection()
        return result

    def tell(**what):
        told.append(what["schedule"])

    signals.schedule_fired.connect(tell)
    try:
        scheduler = Scheduler()
        scheduler.lead()
        with connection.execute_wrapper(kill_after_the_third_savepoint):
            scheduler.fire_until(Passes(2))
    finally:
        signals.schedule_fired.disconnect(tell)
    assert left == [0]
    assert told == ["good"] * Fire.objects.filter(schedule="good").count() != []
