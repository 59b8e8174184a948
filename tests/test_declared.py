"""Schedules that are declared in settings and above handlers, put in force by leaders and by hand."""

import threading

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection

from django_alkstore import (
    AlreadyRegistered,
    InvalidOption,
    fire_now,
    pause_schedule,
    registry,
    resume_schedule,
    schedule,
    unschedule,
    update_schedule,
)
from django_alkstore.declared import (
    ROLLING_SECONDS,
    Declaring,
    Synced,
    _sync_newer,
    declared_plans,
    is_superseded,
    sync,
)
from django_alkstore.models import Declaration, Job, Lock, Schedule
from django_alkstore.names import DECLARING_LOCK
from django_alkstore.scheduler import Scheduler

from .factories import LockFactory, ScheduleFactory, ago, aware
from .ledger import NOON, fired, tick_all
from .processes import across_connections, held, in_threads, locking, until

pytestmark = pytest.mark.django_db

HOURLY = {"spec": "@every 1h", "queue": "reports"}
NIGHTLY = {"spec": "@cron 30 2 * * *", "queue": "reports", "timezone": "Europe/London"}
OLD = {"kept": HOURLY, "gone": HOURLY}
NEW = {"kept": HOURLY, "changed": NIGHTLY}


@pytest.fixture
def declare(settings, monkeypatch):
    """Let the code at hand declare these schedules in settings, and none above handlers."""
    monkeypatch.setattr(registry, "declarations", registry.Declarations())

    def set_all(schedules):
        settings.ALKSTORE = {"SCHEDULES": schedules}

    return set_all


@pytest.fixture
def lead(declare):
    """Lead for a moment with code that declares these schedules; the scheduler."""

    def once(schedules):
        declare(schedules)
        scheduler = Scheduler()
        scheduler.lead()
        scheduler.resign()
        return scheduler

    return once


def begin_to_lead():
    """What a scheduler does about declarations once it leads; whether that is settled."""
    declaring = Declaring()
    declaring.begin()
    return declaring.settled


def clean(job):
    """A handler."""


def rows():
    """Name and spec of the schedules that are declared."""
    return dict(Schedule.objects.filter(declared=True).values_list("name", "spec"))


def specs(declarations):
    return {name: entry["spec"] for name, entry in declarations.items()}


# -- putting in force -----------------------------------------------------------------------------


def test_what_is_declared_is_added_with_its_first_boundary(declare):
    declare(
        {"nightly": {**NIGHTLY, "payload": {"kind": "stock"}, "priority": 0, "overlap": "skip"}}
    )
    assert sync() == Synced(added=["nightly"])
    row = Schedule.objects.get()
    assert (row.name, row.spec, row.payload) == ("nightly", NIGHTLY["spec"], {"kind": "stock"})
    assert (row.declared, row.enabled, row.timezone) == (True, True, "Europe/London")
    assert (row.priority, row.max_attempts, row.overlap) == (0, None, "skip")
    assert row.next_fire_at > row.created_at


def test_what_is_declared_above_a_handler_is_added_beside_what_settings_say(declare):
    declare({"nightly": NIGHTLY})
    registry.declarations.declare("@every 5m", queue="cleaning")(clean)
    assert sync() == Synced(added=["nightly", "tests.test_declared.clean"])
    assert Schedule.objects.get(name="tests.test_declared.clean").queue == "cleaning"


def test_syncing_again_changes_nothing(declare):
    declare(OLD)
    sync()
    before = list(Schedule.objects.order_by("id").values())
    assert sync() == Synced()
    assert list(Schedule.objects.order_by("id").values()) == before
    assert Declaration.objects.count() == 1


def test_what_is_declared_no_longer_is_removed_and_its_jobs_and_ledger_stay(declare):
    declare(OLD)
    sync()
    Schedule.objects.update(next_fire_at=NOON)
    tick_all(NOON)
    declare(NEW)
    assert sync() == Synced(added=["changed"], removed=["gone"])
    assert rows() == specs(NEW)
    assert (Job.objects.count(), fired("gone")) == (2, [0])


def test_when_nothing_is_declared_any_more_all_that_was_is_removed(lead):
    lead(OLD)
    lead({})
    assert rows() == {}


CHANGES = {
    "payload": ({**HOURLY, "payload": 1}, True),
    "true is no one": ({**HOURLY, "payload": True}, True),
    "priority": ({**HOURLY, "priority": 5}, True),
    "queue": ({**HOURLY, "queue": "mails"}, True),
    "overlap": ({**HOURLY, "overlap": "queue"}, True),
    "spec": ({**HOURLY, "spec": "@every 2h"}, False),
}


@pytest.mark.parametrize(("entry", "stays"), CHANGES.values(), ids=CHANGES)
def test_a_changed_declaration_changes_the_row_and_its_boundary_if_it_must(declare, entry, stays):
    declare({"kept": {**HOURLY, "payload": 2, "max_attempts": 4}})
    sync()
    Schedule.objects.update(next_fire_at=NOON)
    declare({"kept": entry})
    assert sync() == Synced(changed=["kept"])
    row = Schedule.objects.get()
    assert (row.next_fire_at == NOON) == stays
    wanted = {"payload": None, "priority": None, **entry}
    assert {key: getattr(row, key) for key in wanted} == wanted
    assert type(row.payload) is type(wanted["payload"])
    assert row.max_attempts is None


def test_what_was_edited_behind_its_back_is_put_right(declare):
    declare({"kept": HOURLY})
    sync()
    Schedule.objects.update(queue="elsewhere", catch_up="x")
    assert sync() == Synced(changed=["kept"])
    assert (Schedule.objects.get().queue, Schedule.objects.get().catch_up) == ("reports", "all")


def test_a_pause_survives_a_sync_whether_the_declaration_changed_or_not(declare):
    declare({"kept": HOURLY})
    sync()
    pause_schedule("kept")
    sync()
    declare({"kept": {**HOURLY, "payload": 1}})
    sync()
    assert (Schedule.objects.get().enabled, Schedule.objects.get().payload) == (False, 1)


def test_a_declared_schedule_that_has_ended_stays_ended(declare):
    declare({"kept": {**HOURLY, "max_fires": 1}})
    sync()
    tick_all(Schedule.objects.get().next_fire_at)
    ended = Schedule.objects.get().ended_at
    sync()
    assert ended is not None and Schedule.objects.get().ended_at == ended


# -- by hand --------------------------------------------------------------------------------------


def test_schedules_made_by_hand_are_never_touched(declare):
    ScheduleFactory(name="by-hand", next_fire_at=NOON)
    before = Schedule.objects.values().get()
    for schedules in (OLD, NEW, {}):
        declare(schedules)
        sync()
        assert Schedule.objects.values().get(name="by-hand") == before


def test_one_made_by_hand_keeps_a_name_that_is_declared_and_the_log_says_so(declare, caplog):
    ScheduleFactory(name="kept", spec="@every 1m", next_fire_at=NOON)
    before = Schedule.objects.values().get()
    declare(NEW)
    assert sync() == Synced(added=["changed"], by_hand=["kept"])
    assert Schedule.objects.values().get(name="kept") == before
    assert "schedule kept is declared, and one made by hand has its name" in caplog.text


def test_once_the_one_made_by_hand_is_gone_the_declared_one_takes_its_name(declare):
    ScheduleFactory(name="kept")
    declare({"kept": HOURLY})
    sync()
    unschedule("kept")
    assert sync() == Synced(added=["kept"])


VERBS = {
    "schedule": lambda: schedule("kept", "@every 2h", "reports"),
    "schedule as it is": lambda: schedule("kept", "@every 1h", "reports"),
    "unschedule": lambda: unschedule("kept"),
    "update": lambda: update_schedule("kept", priority=5),
    "update of nothing": lambda: update_schedule("kept"),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_declared_schedule_is_changed_where_it_is_declared_alone(declare, verb):
    declare({"kept": HOURLY})
    sync()
    before = Schedule.objects.values().get()
    with pytest.raises(InvalidOption, match="made by hand, not one declared .*, got 'kept'"):
        verb()
    assert Schedule.objects.values().get() == before


def test_a_declared_schedule_can_be_paused_resumed_and_fired(declare):
    declare({"kept": HOURLY})
    sync()
    assert pause_schedule("kept") and resume_schedule("kept")
    assert Job.objects.get(id=fire_now("kept")).schedule == "kept"


# -- when a leader starts -------------------------------------------------------------------------


def test_a_leader_puts_what_it_declares_in_force_when_it_starts(lead):
    assert lead(OLD).declaring.settled
    assert rows() == specs(OLD)


def test_a_leader_that_declares_nothing_adds_nothing(lead):
    assert lead({}).declaring.settled
    assert not Schedule.objects.exists()
    assert set(Lock.objects.values_list("owner", flat=True)) == {""}


def test_a_runner_that_is_refused_the_lease_changes_nothing(declare):
    LockFactory(name=Scheduler().lease.name)
    declare(OLD)
    with pytest.raises(Exception, match="expected no other scheduler to lead"):
        Scheduler().lead()
    assert rows() == {}


def test_old_and_new_code_that_lead_in_turn_do_not_fight(lead, caplog):
    lead(OLD)
    lead(NEW)
    before = list(Schedule.objects.order_by("id").values())
    for _ in range(3):
        assert lead(OLD).declaring.settled
        assert lead(NEW).declaring.settled
    assert list(Schedule.objects.order_by("id").values()) == before
    assert rows() == specs(NEW)
    assert caplog.text.count("are older than others in use, and leave those alone") == 3


def test_of_three_sets_only_the_newest_is_put_in_force_again(lead):
    newest = {"kept": NIGHTLY}
    for schedules in (OLD, NEW, newest, OLD, NEW, newest, NEW, OLD):
        lead(schedules)
    assert rows() == specs(newest)


def test_a_superseded_leader_goes_on_firing_what_is_in_force(lead, declare):
    lead(OLD)
    lead(NEW)
    declare(OLD)
    scheduler = Scheduler()
    scheduler.lead()
    scheduler.tick(aware(max(row.next_fire_at for row in Schedule.objects.all())))
    assert fired("kept") and fired("changed")


def test_an_explicit_sync_puts_an_older_set_back_and_the_newer_one_is_superseded(lead, declare):
    lead(OLD)
    lead(NEW)
    declare(OLD)
    assert sync() == Synced(added=["gone"], removed=["changed"])
    lead(NEW)
    lead(OLD)
    assert rows() == specs(OLD)
    assert Declaration.objects.count() == 2


def test_whether_a_set_is_superseded_can_be_asked(lead):
    engine = Scheduler().engine
    lead(OLD)
    old = declared_plans()
    assert not is_superseded(engine, old)
    lead(NEW)
    assert is_superseded(engine, old)
    assert not is_superseded(engine, declared_plans())


@pytest.fixture
def unused():
    """Let a while go by in which no scheduler has had any of the sets."""
    return lambda: Declaration.objects.update(seen_at=ago(ROLLING_SECONDS + 1))


def test_code_from_before_the_first_declaration_removes_none(lead):
    for schedules in ({}, {"kept": HOURLY}, {}, {"kept": HOURLY}):
        lead(schedules)
    assert rows() == {"kept": "@every 1h"}


def test_after_a_step_back_the_older_set_returns_once_the_newer_is_not_in_use(lead, unused):
    lead(OLD)
    lead(NEW)
    lead(OLD)
    assert rows() == specs(NEW)
    unused()
    lead(OLD)
    assert rows() == specs(OLD)


def test_a_leader_looks_again_each_minute_whether_the_newer_set_is_in_use(
    lead, declare, unused, monkeypatch
):
    lead(OLD)
    lead(NEW)
    declare(OLD)
    scheduler = Scheduler()
    scheduler.lead()
    unused()
    scheduler.fire_until(Passes(1))
    assert rows() == specs(NEW)
    monkeypatch.setattr("django_alkstore.declared.NOTE_SECONDS", 0)
    scheduler.lead()
    unused()
    scheduler.fire_until(Passes(1))
    assert rows() == specs(OLD)


def test_a_set_is_in_use_as_long_as_a_scheduler_stands_by_with_it(lead, declare, unused):
    lead(OLD)
    lead(NEW)
    unused()
    Declaring().stand_by()
    lead(OLD)
    assert rows() == specs(NEW)


def test_standing_by_with_a_set_puts_nothing_in_force(lead, declare):
    lead(OLD)
    declare(NEW)
    Declaring().stand_by()
    assert rows() == specs(OLD)


def test_whoever_was_paused_before_putting_a_set_in_force_asks_again(lead, declare, monkeypatch):
    lead(OLD)
    lead(NEW)
    declare(OLD)
    engine, plans = Scheduler().engine, declared_plans()
    assert _sync_newer(engine, plans) is True
    assert rows() == specs(NEW)


def test_the_order_in_which_schedules_are_declared_makes_no_other_set(lead):
    lead(OLD)
    lead(dict(reversed(OLD.items())))
    assert Declaration.objects.count() == 1


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.fixture
def twice(declare):
    """Code that declares one name in settings and above a handler."""
    declare({"kept": HOURLY})
    registry.declarations.declare("@every 2h", queue="reports", name="kept")(clean)


def test_a_name_declared_in_two_places_is_an_error_that_names_it(twice):
    sentence = "expected schedule 'kept' to be declared in settings or above a handler, got both"
    with pytest.raises(AlreadyRegistered, match=sentence):
        sync()
    assert rows() == {}


def test_declarations_that_are_wrong_are_logged_and_stop_no_firing(twice, caplog):
    ScheduleFactory(name="good", overdue=True)
    scheduler = Scheduler()
    scheduler.lead()
    scheduler.pass_once()
    assert len(fired("good")) == 1
    assert scheduler.declaring.settled
    assert "the declared schedules are wrong, and stay as they were" in caplog.text


def test_wrong_settings_are_an_error_to_whoever_syncs(settings):
    settings.ALKSTORE = {"SCHEDULES": {"kept": {"spec": "0 9 * * *", "queue": "reports"}}}
    with pytest.raises(ImproperlyConfigured, match=r"SCHEDULES\['kept'\]: expected a spec to be"):
        sync()


@across_connections
def test_a_sync_that_the_database_fails_is_tried_again_by_the_next_pass(declare, caplog):
    declare(OLD)
    left = [1]

    def fail_once(execute, sql, params, many, context):
        if "django_alkstore_declaration" in sql and left:
            left.pop()
            raise OperationalError("the server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    scheduler = Scheduler()
    with connection.execute_wrapper(fail_once):
        scheduler.lead()
    assert (scheduler.declaring.settled, rows()) == (False, {})
    assert "could not be put in force; trying again" in caplog.text
    scheduler.fire_until(Passes(1))
    assert (scheduler.declaring.settled, rows()) == (True, specs(OLD))


class Passes:
    """A stop that lets so many passes go by without sleeping."""

    def __init__(self, many):
        self.left = many

    def is_set(self):
        return self.left <= 0

    def wait(self, seconds):
        self.left -= 1
        return self.is_set()


def test_half_a_set_is_never_in_force(declare):
    declare(OLD)
    sync()

    def fail(execute, sql, params, many, context):
        if sql.startswith("DELETE") and "django_alkstore_schedule" in sql:
            raise OperationalError("disk full")
        return execute(sql, params, many, context)

    declare(NEW)
    with connection.execute_wrapper(fail), pytest.raises(OperationalError):
        sync()
    assert rows() == specs(OLD)
    assert not Lock.objects.filter(name=DECLARING_LOCK).exclude(owner="").exists()


# -- two at once ----------------------------------------------------------------------------------


def test_while_another_process_puts_a_set_in_force_a_sync_does_nothing(declare):
    row = LockFactory(name=DECLARING_LOCK)
    declare(OLD)
    assert (sync(), rows()) == (None, {})
    scheduler = Scheduler()
    scheduler.lead()
    assert not scheduler.declaring.settled
    row.delete()
    scheduler.fire_until(Passes(1))
    assert rows() == specs(OLD)


@across_connections
def test_a_sync_does_not_wait_for_another(declare, only_on):
    only_on("postgresql", "mysql")
    row = LockFactory(name=DECLARING_LOCK, owner="", expires_at=ago(1))
    declare(OLD)
    with held(lambda: locking(row)):
        assert sync() is None
    assert sync() == Synced(added=["gone", "kept"])


@across_connections
@pytest.mark.parametrize("verb", [sync, begin_to_lead])
def test_threads_that_sync_at_once_leave_one_set_and_no_error(declare, verb):
    declare({f"schedule-{n}": HOURLY for n in range(10)})
    barrier = threading.Barrier(4)

    def race():
        barrier.wait(30)
        return verb()

    done = in_threads(*[race] * 4)
    assert any(done)
    assert len(rows()) == Schedule.objects.count() == 10
    assert Declaration.objects.count() == 1


@across_connections
def test_syncing_beside_registrations_by_hand_harms_neither(declare):
    declare({f"declared-{n}": HOURLY for n in range(10)})
    barrier = threading.Barrier(3)

    def register():
        barrier.wait(30)
        for n in range(10):
            schedule(f"by-hand-{n}", "@every 1h", "reports")

    def put_in_force():
        barrier.wait(30)
        return sync()

    in_threads(register, put_in_force, register)
    assert (len(rows()), Schedule.objects.count()) == (10, 20)


# -- as processes ---------------------------------------------------------------------------------

JOBS = """
from django_alkstore import handler, scheduled

@scheduled("{spec}", queue="late")
@handler("late")
def work(job):
    pass
"""


@pytest.fixture
def run_version(start, tmp_path):
    """Start ``run_schedules`` on a version of a project whose app has that ``jobs.py``."""

    def run(version, jobs):
        app = tmp_path / version / "late_app"
        app.mkdir(parents=True, exist_ok=True)
        (app / "__init__.py").touch()
        (app / "jobs.py").write_text(jobs)
        return start(
            "run_schedules", SHOP_EXTRA_APPS="late_app", PYTHONPATH=str(tmp_path / version)
        )

    return run


@across_connections
def test_a_deploy_puts_what_jobs_py_declares_in_force_and_an_old_runner_leaves_it(run_version):
    old, new = JOBS.format(spec="@every 1h"), JOBS.format(spec="@cron 30 2 * * *")
    for version, jobs, spec in [
        ("old", old, "@every 1h"),
        ("new", new, "@cron 30 2 * * *"),
        ("old", old, "@cron 30 2 * * *"),
    ]:
        runner = run_version(version, jobs)
        runner.until_says("leading as")
        until(lambda spec=spec: rows() == {"late_app.jobs.work": spec})
        assert runner.terminate() == 0, runner.text
    assert "are older than others in use" in runner.text


@across_connections
@pytest.mark.parametrize("jobs", ["1 / 0", "import nowhere_to_be_found", "def"])
def test_a_broken_jobs_module_is_logged_and_the_schedules_fire(run_version, jobs):
    ScheduleFactory(name="declared", declared=True, overdue=True)
    runner = run_version("broken", jobs)
    until(lambda: fired("declared"))
    assert runner.terminate() == 0
    assert "the declared schedules are wrong, and stay as they were" in runner.text
    assert "jobs.py" in runner.text
    assert Schedule.objects.get().declared
