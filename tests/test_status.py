"""What a person is shown, and what the looking costs."""

import json
import logging
from datetime import datetime, timedelta, timezone

import pytest
from django.db import connection

from django_alkstore import reads, registry, sql
from django_alkstore.declared import sync
from django_alkstore.names import SCHEDULER_LOCK, backing_queue
from django_alkstore.status import COUNTED_UP_TO, as_plain, is_well, problems, snapshot

from .factories import (
    CountFactory,
    FireFactory,
    JobFactory,
    LockFactory,
    ScheduleFactory,
    ago,
)
from .piles import pile
from .test_plans import faults_of, plans_of

pytestmark = pytest.mark.django_db


def status_of(queue="reports"):
    (found,) = [status for status in snapshot().queues if status.queue == queue]
    return found


def schedule_named(name):
    (found,) = [status for status in snapshot().schedules if status.name == name]
    return found


# -- queues -----------------------------------------------------------------------------------


def test_each_state_of_a_queue_is_counted_apart():
    for count, kind in enumerate(["scheduled", "running", "lapsed", "dead"], 1):
        JobFactory.create_batch(count, **{kind: True})
    JobFactory.create_batch(5)
    JobFactory(queue="mails")
    seen = status_of()
    assert (seen.ready, seen.scheduled, seen.running, seen.lapsed, seen.dead) == (5, 1, 5, 3, 4)


def test_a_queue_without_rows_shows_nothing_to_wait_for(settings):
    settings.ALKSTORE = {"QUEUES": {"mails": {}}}
    seen = status_of("mails")
    assert (seen.ready, seen.oldest_ready_seconds, seen.next_due_seconds) == (0, None, None)


def test_the_oldest_ready_job_is_found_behind_those_of_a_higher_priority():
    for priority, age in [(9, 10), (5, 5_000), (0, 20)]:
        JobFactory.create_batch(3, priority=priority, run_at=ago(age))
    assert status_of().oldest_ready_seconds == pytest.approx(5_000, abs=60)


def test_the_next_due_job_is_the_soonest_of_those_that_wait():
    for seconds in (900, 300, 600):
        JobFactory(scheduled=True, run_at=ago(-seconds))
    JobFactory(expires_at=ago(-30), due_at=ago(-30))
    assert status_of().next_due_seconds == pytest.approx(300, abs=60)


def test_a_ready_job_that_will_expire_counts_as_ready_alone():
    JobFactory(expires_at=ago(-30), due_at=ago(-30))
    seen = status_of()
    assert (seen.ready, seen.scheduled, seen.running) == (1, 0, 0)


def test_only_deaths_of_the_last_hour_count_as_recent():
    JobFactory(dead=True)
    JobFactory(dead=True, finished_at=ago(3_700))
    assert (status_of().dead, status_of().dead_last_hour) == (2, 1)


@pytest.mark.parametrize("year", [1_001, 9_999])
def test_a_queue_waits_neither_for_nor_since_an_instant_beyond_every_clock(year):
    instant = datetime(year, 12, 31, tzinfo=timezone.utc)
    JobFactory(run_at=instant), JobFactory(scheduled=True, run_at=instant)
    JobFactory(lapsed=True, due_at=instant), JobFactory(dead=True, finished_at=instant)
    ScheduleFactory(next_fire_at=instant, last_fired_at=instant)
    seen = status_of()
    assert (seen.oldest_ready_seconds, seen.next_due_seconds) == (None, None)
    assert snapshot().schedules[0].next_fire_at is None
    assert not [text for text in snapshot().warnings if "ready" in text or "due" in text]


@pytest.mark.parametrize("word", ["infinity", "-infinity"])
def test_an_instant_that_no_datetime_can_hold_hides_no_other_row(word, only_on):
    only_on("postgresql", "sqlite")
    job, lock = JobFactory(scheduled=True), LockFactory(name=SCHEDULER_LOCK)
    JobFactory.create_batch(2, queue="mails")
    engine = sql.engine()
    engine.execute(f"UPDATE django_alkstore_job SET due_at = '{word}' WHERE id = {job.pk}", {})
    engine.execute(f"UPDATE django_alkstore_lock SET expires_at = '{word}'", {})
    assert status_of().next_due_seconds is None
    assert status_of("mails").ready == 2
    assert snapshot().leader.owner == lock.owner


def test_an_outbox_is_shown_by_its_own_name():
    JobFactory(queue=backing_queue("receipts"))
    seen = status_of(backing_queue("receipts"))
    assert (seen.name, seen.kind) == ("outbox receipts", "outbox")


def test_a_figure_is_counted_so_far_and_says_that_there_are_more():
    pile("ready", COUNTED_UP_TO + 5)
    seen = status_of()
    assert (seen.shown("ready"), seen.ready_capped) == ("10,000+", True)
    assert (seen.shown("dead"), "dead" in seen.capped) == ("0", False)


def test_a_figure_that_just_fits_says_nothing_of_more():
    pile("dead", COUNTED_UP_TO)
    assert status_of().shown("dead") == "10,000"


# -- throughput -------------------------------------------------------------------------------


def test_throughput_is_by_minute_and_by_hour_the_latest_last():
    now = sql.engine().clock().replace(second=0, microsecond=0)
    CountFactory(minute=now, acked=3, retried=1, died=1)
    CountFactory(minute=now - timedelta(minutes=59), acked=5)
    CountFactory(minute=now - timedelta(hours=20), acked=7)
    seen = status_of()
    assert (len(seen.per_minute), len(seen.per_hour)) == (60, 24)
    assert seen.per_minute[-2:] in ([(0, 0), (3, 2)], [(3, 2), (0, 0)])  # a minute may have begun
    assert sum(acked for acked, _ in seen.per_hour) == 15
    assert (seen.done_last_day, seen.failed_last_day, seen.failed_last_hour) == (15, 2, 2)


def test_counts_of_yesterday_and_the_sum_of_all_times_are_in_no_chart():
    CountFactory(minute=ago(30 * 3_600), acked=7)
    CountFactory(minute=sql.TOTAL, acked=7)
    assert status_of().done_last_day == 0


def test_a_queue_whose_jobs_are_all_done_still_shows_its_throughput():
    CountFactory(queue="gone", acked=2)
    assert status_of("gone").done_last_day == 2


# -- schedules and their leader -----------------------------------------------------------------


def test_a_schedule_shows_how_late_it_is_and_what_it_skipped():
    ScheduleFactory(name="nightly", next_fire_at=ago(600))
    FireFactory(schedule="nightly", skipped=7)
    FireFactory(schedule="nightly", skipped=9, fired_at=ago(2 * 86_400))
    seen = schedule_named("nightly")
    assert seen.late_seconds == pytest.approx(600, abs=60)
    assert seen.skipped == 7


def test_a_schedule_shows_how_late_its_last_fire_was():
    boundary = ago(600).replace(microsecond=0)
    ScheduleFactory(name="nightly", last_fired_at=boundary)
    FireFactory(schedule="nightly", boundary=boundary, fired_at=boundary + timedelta(seconds=9))
    assert schedule_named("nightly").fired_late_seconds == 9.0


def test_a_paused_schedule_is_never_late():
    ScheduleFactory(name="nightly", next_fire_at=ago(600), enabled=False)
    assert schedule_named("nightly").late_seconds == 0.0


def test_a_boundary_beyond_every_clock_is_shown_as_none(only_on):
    only_on("postgresql", "sqlite")
    row = ScheduleFactory(name="odd")
    text = f"UPDATE django_alkstore_schedule SET next_fire_at = 'infinity' WHERE id = {row.pk}"
    sql.engine().execute(text, {})
    assert schedule_named("odd").next_fire_at is None


def test_the_leader_is_whoever_holds_the_lease():
    LockFactory(name=SCHEDULER_LOCK, owner="host:1:aa", acquired_at=ago(90), expires_at=ago(-8))
    leader = snapshot().leader
    assert (leader.owner, leader.lapsed) == ("host:1:aa", False)
    assert leader.age_seconds == pytest.approx(90, abs=30)


def test_a_leader_whose_lease_has_ended_is_shown_as_gone():
    LockFactory(name=SCHEDULER_LOCK, expires_at=ago(5))
    assert snapshot().leader.lapsed


def test_a_lease_that_was_given_back_is_nobodys():
    LockFactory(name=SCHEDULER_LOCK, owner="", expires_at=ago(5))
    assert snapshot().leader is None


# -- what comes first ---------------------------------------------------------------------------


def test_a_quiet_database_warns_of_nothing():
    JobFactory()
    JobFactory(scheduled=True)
    ScheduleFactory()
    assert snapshot().warnings == []


def test_messages_without_a_delivery_are_warned_of():
    JobFactory(queue=backing_queue("nobody"), scheduled=True)
    (warning,) = snapshot().warnings
    assert "outbox nobody has messages and no delivery" in warning


def test_messages_with_a_delivery_are_not(monkeypatch):
    monkeypatch.setitem(registry.deliveries._calls, "served", print)
    JobFactory(queue=backing_queue("served"))
    assert snapshot().warnings == []


def test_dead_messages_wait_for_no_delivery():
    JobFactory(queue=backing_queue("nobody"), dead=True, finished_at=ago(7_200))
    assert snapshot().warnings == []


def test_a_job_that_has_been_ready_for_long_is_warned_of():
    JobFactory(run_at=ago(1_200))
    (warning,) = snapshot().warnings
    assert warning == "reports has a job that has been ready for 20 min: is a worker running?"


@pytest.mark.parametrize(
    "row",
    [{"scheduled": True}, {"scheduled": True, "attempts": 1}, {"lapsed": True}],
    ids=["delayed", "to be tried again", "lapsed"],
)
def test_what_no_worker_looks_at_though_it_is_due_is_warned_of(row):
    JobFactory(**row, due_at=ago(1_200))
    (warning,) = snapshot().warnings
    assert warning == "reports has a job that has been due for 20 min: is a worker running?"


def test_what_is_claimed_or_waits_for_its_time_is_not_overdue():
    JobFactory(running=True), JobFactory(scheduled=True), JobFactory(expired=True)
    assert status_of().overdue_seconds is None


def test_recent_deaths_are_warned_of():
    JobFactory.create_batch(2, dead=True)
    assert snapshot().warnings == ["reports: 2 dead in the last hour."]


def test_due_schedules_without_a_leader_are_warned_of():
    ScheduleFactory(next_fire_at=ago(600))
    LockFactory(name=SCHEDULER_LOCK, expires_at=ago(500))
    (warning,) = snapshot().warnings
    assert warning == "No scheduler leads, and schedules are due (1): is run_schedules running?"


def test_schedules_that_a_leader_does_not_fire_are_warned_of_by_the_worst():
    ScheduleFactory(next_fire_at=ago(600))
    ScheduleFactory(name="worst", next_fire_at=ago(7_300))
    LockFactory(name=SCHEDULER_LOCK)
    assert snapshot().warnings == ["2 schedules are late, worst by 2 h."]


def test_a_jobs_module_that_cannot_be_imported_is_a_warning_not_the_end(settings):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.broken"]
    (warning,) = snapshot().warnings
    assert warning.endswith("RuntimeError: the jobs of this app cannot be imported")


@pytest.mark.parametrize(("max_dead", "found"), [(None, 0), (2, 0), (1, 1), (0, 1)])
def test_a_probe_says_how_many_dead_jobs_are_too_many(max_dead, found):
    JobFactory.create_batch(2, dead=True)
    assert len(problems(snapshot(), max_dead=max_dead)) == found


@pytest.mark.parametrize(("state", "instant"), [({}, "run_at"), ({"lapsed": True}, "due_at")])
@pytest.mark.parametrize(("max_age", "found"), [(60, 1), (600, 0)])
def test_a_probe_says_what_age_is_too_old(state, instant, max_age, found):
    JobFactory(**state, **{instant: ago(120)})
    assert len(problems(snapshot(), max_age=max_age)) == found


def test_all_is_well_until_schedules_are_due_and_nobody_leads():
    row = ScheduleFactory()
    assert is_well() is None
    type(row).objects.update(next_fire_at=ago(600))
    assert is_well() == "no scheduler leads, and schedules are due"
    LockFactory(name=SCHEDULER_LOCK)
    assert is_well() == "schedules are late"


def test_a_snapshot_can_be_written_as_json():
    JobFactory(dead=True)
    ScheduleFactory()
    plain = json.loads(json.dumps(as_plain(snapshot()), default=str))
    (queue,) = [queue for queue in plain["queues"] if queue["queue"] == "reports"]
    assert (queue["dead"], queue["capped"], queue["done_last_hour"]) == (1, [], 0)
    assert len(plain["schedules"]) == 1


# -- what it costs --------------------------------------------------------------------------------


def test_the_number_of_statements_does_not_depend_on_that_of_queues(statements):
    snapshot()
    few = len(statements)
    for name in ("mails", "images", "exports", "imports"):
        JobFactory(queue=name)
        JobFactory(queue=name, dead=True)
        ScheduleFactory(queue=name)
    before = len(statements)
    snapshot()
    assert len(statements) - before <= few + 1  # schedules ask for what they skipped
    assert few <= 11


def test_a_snapshot_only_reads(statements):
    JobFactory(lapsed=True)
    before = len(statements)
    snapshot()
    assert all(
        query["sql"].lstrip().startswith(("SELECT", "WITH")) for query in statements[before:]
    )


def test_a_snapshot_walks_no_table_of_jobs():
    for kind in ("ready", "scheduled", "lapsed", "dead", "done"):
        pile(kind, 3_000)
    if connection.vendor == "postgresql":
        sql.engine().execute("ANALYZE django_alkstore_job", {})
    for text, plan in plans_of(
        lambda: reads.figures(sql.engine(), ["reports"], ago(60), 100)
    ).items():
        assert faults_of(plan) == [], f"{text}\n{plan}"


def test_nothing_is_logged_by_looking(caplog):
    JobFactory(lapsed=True)
    with caplog.at_level(logging.INFO, logger="django_alkstore"):
        snapshot()
    assert caplog.records == []


def test_declared_schedules_that_a_newer_set_has_superseded_are_warned_of(settings):
    old, new = ({"SCHEDULES": {"nightly": {"spec": f"@every {n}h", "queue": "a"}}} for n in (1, 2))
    for declared in (old, new):
        settings.ALKSTORE = declared
        sync()
        assert snapshot().warnings == []
    settings.ALKSTORE = old
    (warning,) = snapshot().warnings
    assert "older than others in use" in warning
    assert problems(snapshot()) == []  # a deployment that rolls on is no trouble for a probe


def test_a_schedule_that_waits_for_its_job_is_not_late():
    fire = FireFactory(schedule="waits", job_id=JobFactory(running=True).pk)
    LockFactory(name=SCHEDULER_LOCK)
    row = ScheduleFactory(name="waits", overlap="queue", next_fire_at=ago(3600))
    assert snapshot().schedules[0].late_seconds > 3000
    assert is_well() == "schedules are late"
    type(row).objects.update(last_fired_at=fire.boundary)
    assert snapshot().schedules[0].late_seconds == 0
    assert is_well() is None
