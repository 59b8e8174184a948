"""What a person on call does from a shell."""

import io
import json
import re
import signal
from datetime import datetime, timedelta
from datetime import timezone as zones

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_alkstore import outbox, queue
from django_alkstore.models import Count, Fire, Job, Schedule
from django_alkstore.names import SCHEDULER_LOCK, backing_queue

from .factories import (
    CountFactory,
    FireFactory,
    JobFactory,
    LockFactory,
    ScheduleFactory,
    ago,
)
from .piles import pile
from .processes import PATIENCE, across_connections, manage, until

pytestmark = pytest.mark.django_db

DAY = 86_400
SELECTING = {  # what the commands begin with that change jobs, by name
    "alkstore_requeue": ["alkstore_requeue"],
    "alkstore_cancel": ["alkstore_cancel"],
    "alkstore_run_now": ["alkstore_run_now"],
    "alkstore_priority": ["alkstore_priority", "--to", "9"],
}
each_selecting = pytest.mark.parametrize("command", SELECTING.values(), ids=SELECTING)
OURS = [
    *([*command, "--all"] for command in SELECTING.values()),
    ["alkstore_status"],
    ["alkstore_prune"],
    ["alkstore_schedules"],
]


def said(*args, **options):
    """What the command prints."""
    out = io.StringIO()
    call_command(*args, stdout=out, **options)
    return out.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def states():
    return sorted(Job.objects.values_list("state", flat=True))


@pytest.mark.parametrize("command", OURS, ids=lambda command: command[0])
def test_an_unknown_database_is_refused(command):
    with pytest.raises(CommandError, match="expected using to be an alias in DATABASES"):
        call_command(*command, "--database", "elsewhere")


# -- status ---------------------------------------------------------------------------------------


def test_status_is_an_aligned_table_with_what_is_wrong_first():
    JobFactory.create_batch(3, run_at=ago(1_200))
    JobFactory(queue="a-queue-with-a-long-name", dead=True)
    lines = said("alkstore_status").splitlines()
    head, *rows = [line for line in lines if not line.startswith("!")][:4]
    assert lines[0].startswith("! ") and head.startswith("queue ")
    assert {len(line) for line in (head, *rows)} == {len(head)}


def test_status_tells_queues_schedules_and_the_leader():
    JobFactory(queue=backing_queue("receipts"))
    ScheduleFactory(name="nightly", enabled=False)
    LockFactory(name=SCHEDULER_LOCK, owner="host:7:aa")
    text = said("alkstore_status")
    assert "outbox receipts" in text
    assert [line for line in text.splitlines() if line.startswith("nightly") and "paused" in line]
    assert "host:7:aa leads the scheduler" in text


def test_status_as_json_is_json_alone():
    JobFactory.create_batch(2, dead=True)
    plain = json.loads(said("alkstore_status", "--json"))
    assert {queue["queue"]: queue["dead"] for queue in plain["queues"]}["reports"] == 2
    assert plain["warnings"] == ["reports: 2 dead in the last hour."]


def test_a_check_says_ok_in_one_word():
    JobFactory()
    assert said("alkstore_status", "--check") == "ok\n"


def test_a_check_fails_with_the_reason():
    JobFactory(run_at=ago(120))
    with pytest.raises(CommandError, match="reports has a job that has been ready for 2 min"):
        said("alkstore_status", "--check", "--max-age", "60")
    assert said("alkstore_status", "--check", "--max-age", "600") == "ok\n"


def test_a_check_counts_the_dead_only_if_asked():
    JobFactory.create_batch(2, dead=True)
    assert said("alkstore_status", "--check") == "ok\n"
    assert said("alkstore_status", "--check", "--max-dead", "2") == "ok\n"
    with pytest.raises(CommandError, match="reports has 2 dead jobs, more than 1"):
        said("alkstore_status", "--check", "--max-dead", "1")


def test_a_check_passes_again_once_the_dead_are_requeued():
    JobFactory(dead=True)
    with pytest.raises(CommandError):
        said("alkstore_status", "--check", "--max-dead", "0")
    said("alkstore_requeue", "--all")
    assert said("alkstore_status", "--check", "--max-dead", "0") == "ok\n"


@across_connections
def test_a_check_exits_with_one_and_says_why_on_stderr(start):
    JobFactory(run_at=ago(120))
    process = start("alkstore_status", "--check", "--max-age", "60")
    assert process.wait(PATIENCE) == 1
    assert "reports has a job that has been ready for 2 min" in process.text


@across_connections
def test_a_check_fails_while_the_worker_is_stopped_and_passes_once_it_goes_on(start):
    def check():
        process = start("alkstore_status", "--check", "--max-age", "60")
        return process.wait(PATIENCE), process.text

    outbox("receipts").enqueue({"order": 1})
    worker = start("run_outbox", "receipts")
    until(lambda: not Job.objects.exists())
    worker.signal(signal.SIGSTOP)
    JobFactory(queue=backing_queue("receipts"), run_at=ago(120))
    reason = "outbox receipts has a job that has been ready for 2 min: is a worker running?"
    assert check() == (1, f"CommandError: {reason}\n")
    worker.signal(signal.SIGCONT)
    until(lambda: not Job.objects.exists())
    assert check() == (0, "ok\n")
    assert worker.terminate() == 0


@pytest.mark.parametrize("args", [["--max-age", "-1"], ["--max-age", "nan"], ["--max-dead", "-1"],
                                  ["--max-dead", "many"]])  # fmt: skip
def test_a_limit_that_is_no_number_is_refused(args):
    with pytest.raises(CommandError, match="argument --max"):
        said("alkstore_status", "--check", *args)


# -- jobs -------------------------------------------------------------------------------------------


def test_requeue_takes_ids_and_says_which_were_left_alone():
    dead, running = JobFactory(dead=True), JobFactory(running=True)
    assert said("alkstore_requeue", str(dead.pk), str(running.pk)) == (
        f"job {running.pk} is running and was left alone\n1 requeued\n"
    )
    assert states() == ["ready", "running"]


@pytest.mark.parametrize("args", [["--queue", "reports"], ["--schedule", "nightly"], ["--all"],
                                  ["--older-than", "60", "--all"]])  # fmt: skip
def test_requeue_takes_what_selects_jobs(args):
    JobFactory.create_batch(2, dead=True, schedule="nightly", created_at=ago(90))
    JobFactory(dead=True, schedule="hourly", queue="mails")
    found = 3 if args == ["--all"] else 2
    assert said("alkstore_requeue", *args) == f"{found} requeued, 0 left alone\n"
    assert states().count("ready") == found


def test_an_outbox_is_named_by_its_own_name():
    JobFactory(queue=backing_queue("receipts"), dead=True)
    assert said("alkstore_requeue", "--outbox", "receipts") == "1 requeued, 0 left alone\n"


def test_cancel_leaves_running_jobs_alone():
    JobFactory(), JobFactory(scheduled=True), JobFactory(running=True)
    assert said("alkstore_cancel", "--all") == "2 cancelled, 0 left alone\n"
    assert states() == ["dead", "dead", "running"]


def test_run_now_makes_what_waits_for_its_time_ready():
    retried, ready = JobFactory(scheduled=True, attempts=1), JobFactory()
    assert said("alkstore_run_now", str(retried.pk), str(ready.pk)) == (
        f"job {ready.pk} is ready and was left alone\n1 made ready\n"
    )
    assert states() == ["ready", "ready"]


@pytest.mark.parametrize("priority", [9, 0, -5, -(2**31)])
def test_a_priority_is_given_to_jobs_that_wait(priority):
    waits, running = JobFactory(priority=3), JobFactory(running=True, priority=3)
    words = said("alkstore_priority", "--to", str(priority), "--all")
    assert words == f"1 given priority {priority}, 0 left alone\n"
    stored = dict(Job.objects.values_list("id", "priority"))
    assert stored == {waits.pk: priority, running.pk: 3}


def test_an_id_is_never_taken_for_a_priority():
    job, other = JobFactory.create_batch(2)
    said("alkstore_priority", "--to", "9", str(job.pk))
    with pytest.raises(CommandError, match="required: --to"):
        said("alkstore_priority", "7", str(other.pk))
    assert list(Job.objects.order_by("id").values_list("priority", flat=True)) == [9, 0]


@pytest.mark.parametrize("priority", ["high", "1.5", str(2**31)])
def test_a_priority_that_is_none_is_refused(priority):
    JobFactory()
    with pytest.raises(CommandError, match="argument --to"):
        said("alkstore_priority", "--to", priority, "--all")
    assert Job.objects.get().priority == 0


@each_selecting
def test_a_dry_run_changes_nothing(command):
    for state in ({"dead": True}, {"scheduled": True}, {}, {"running": True}, {"done": True}):
        JobFactory.create_batch(2, **state)
    before = list(Job.objects.order_by("id").values())
    count = 4 if command[0] in ("alkstore_cancel", "alkstore_priority") else 2
    assert said(*command, "--all", "--dry-run").startswith(f"{count} would be ")
    assert list(Job.objects.order_by("id").values()) == before


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Say which jobs"),
        (["1", "--queue", "reports"], "Give ids, or what selects them"),
        (["1", "--dry-run"], "not for ids"),
        (["--queue", "a", "--outbox", "b"], "one of --queue and --outbox"),
        (["--queue", "__alkstore_outbox:x"], "reserved prefix"),
        (["--outbox", "no name"], "expected the outbox name"),
        (["one"], "argument ID"),
    ],
    ids=["nothing", "ids and more", "dry ids", "both", "reserved", "no name", "no id"],
)
@each_selecting
def test_what_does_not_say_which_jobs_changes_none(command, args, words):
    JobFactory(), JobFactory(dead=True), JobFactory(scheduled=True)
    before = list(Job.objects.order_by("id").values())
    with pytest.raises(CommandError, match=words):
        said(*command, *args)
    assert list(Job.objects.order_by("id").values()) == before


def test_progress_is_shown_on_a_terminal_alone():
    pile("dead", 30)
    terminal = Terminal()
    call_command("alkstore_requeue", "--all", stdout=terminal)
    assert "\r100 %, 30 requeued" in terminal.getvalue()
    assert "\r" not in said("alkstore_cancel", "--all")


# -- prune ----------------------------------------------------------------------------------------


def test_prune_deletes_what_has_outlived_its_time():
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    FireFactory(fired_at=ago(91 * DAY))
    CountFactory(minute=ago(8 * DAY))
    JobFactory(), JobFactory(dead=True), FireFactory(), CountFactory()
    assert said("alkstore_prune").splitlines() == [
        "1 dead jobs deleted", "0 done jobs deleted", "1 fires deleted", "1 counts deleted"
    ]  # fmt: skip
    assert (states(), Fire.objects.count(), Count.objects.count()) == (["dead", "ready"], 1, 1)


def test_prune_by_hand_deletes_finished_jobs_of_one_queue_of_that_age():
    for kind in ("dead", "done", "running", "scheduled"):
        JobFactory(**{kind: True}, created_at=ago(9_000))
    Job.objects.filter(state__in=["dead", "done"]).update(finished_at=ago(900))
    JobFactory(dead=True), JobFactory(queue="mails", dead=True, finished_at=ago(900))
    said("alkstore_prune", "--queue", "reports", "--older-than", "600")
    assert states() == ["dead", "dead", "running", "scheduled"]


def test_prune_by_hand_can_be_of_one_state():
    JobFactory(dead=True, finished_at=ago(900)), JobFactory(done=True, finished_at=ago(900))
    args = ["--queue", "reports", "--older-than", "600", "--state", "done"]
    assert said("alkstore_prune", *args) == "1 done jobs deleted\n"
    assert states() == ["dead"]


def test_a_dry_prune_deletes_nothing():
    JobFactory.create_batch(2, dead=True, finished_at=ago(31 * DAY))
    assert "2 dead jobs would be deleted" in said("alkstore_prune", "--dry-run")
    args = ["--queue", "reports", "--older-than", "60", "--dry-run"]
    assert "2 dead jobs would be deleted" in said("alkstore_prune", *args)
    assert Job.objects.count() == 2


@pytest.mark.parametrize("args", [["--queue", "reports"], ["--older-than", "5"],
                                  ["--state", "dead"]])  # fmt: skip
def test_prune_is_not_guessed_at(args):
    JobFactory(dead=True, finished_at=ago(31 * DAY))
    with pytest.raises(CommandError, match="--older-than"):
        said("alkstore_prune", *args)
    assert Job.objects.count() == 1


@across_connections
def test_workers_claim_while_a_pile_is_being_pruned(start):
    pile("dead", 20_000)
    Job.objects.update(finished_at=timezone.now() - timedelta(days=31))
    ids = queue("mails").enqueue_many(range(50))
    process = start(argv=manage("alkstore_prune"))
    until(lambda: Job.objects.filter(queue="reports").count() < 20_000)
    for _ in ids:
        assert queue("mails").claim("w").ack()
    assert process.wait(2 * PATIENCE) == 0
    assert not Job.objects.exists()


# -- schedules ------------------------------------------------------------------------------------


def test_schedules_are_listed():
    ScheduleFactory(name="nightly", spec="@every 1d")
    ScheduleFactory(name="paused", enabled=False)
    head, *rows = said("alkstore_schedules").splitlines()
    assert head.split()[:3] == ["schedule", "spec", "queue"]
    assert [row.split()[0] for row in rows] == ["nightly", "paused"]


def test_a_schedule_is_paused_resumed_and_fired():
    ScheduleFactory(name="nightly")
    assert said("alkstore_schedules", "pause", "nightly") == "nightly is paused\n"
    assert not Schedule.objects.get().enabled
    assert said("alkstore_schedules", "resume", "nightly") == "nightly is resumed\n"
    assert Schedule.objects.get().enabled
    text = said("alkstore_schedules", "fire", "nightly")
    assert text == f"nightly fired: job {Job.objects.get().pk}\n"
    assert Fire.objects.get().leader.endswith(", by command")


@pytest.mark.parametrize("action", ["pause", "resume", "fire"])
def test_a_schedule_that_is_not_there_is_an_error(action):
    with pytest.raises(CommandError, match="There is no schedule 'nobody'"):
        said("alkstore_schedules", action, "nobody")


def test_pausing_twice_is_an_error_that_says_so():
    ScheduleFactory(name="nightly", enabled=False)
    with pytest.raises(CommandError, match="'nightly' that is not paused"):
        said("alkstore_schedules", "pause", "nightly")


@pytest.mark.parametrize("action", ["resume", "fire"])
def test_a_schedule_that_was_spoilt_by_hand_is_an_error_that_says_how(action):
    ScheduleFactory(name="nightly", spec="@never", queue="no name", enabled=False)
    with pytest.raises(CommandError, match="expected"):
        said("alkstore_schedules", action, "nightly")
    assert not Job.objects.exists()


@pytest.mark.parametrize("args", [["pause"], ["list", "nightly"]])
def test_an_action_without_its_name_is_refused(args):
    with pytest.raises(CommandError, match="Give a name, but for list"):
        said("alkstore_schedules", *args)


@pytest.mark.parametrize("args", [["update", "nightly"], ["pause", "nightly", "priority=3"]])
def test_changes_are_for_update_alone_which_wants_some(args):
    ScheduleFactory(name="nightly")
    with pytest.raises(CommandError, match="KEY=VALUE with update"):
        said("alkstore_schedules", *args)


def test_a_schedule_is_updated_with_json_words_and_instants():
    ScheduleFactory(name="nightly", priority=1, backoff=3.0)
    changes = ['payload={"kind": "stock"}', "spec=@every 5m", "priority=7", "backoff=null",
               "ends_at=2999-01-01T00:00:00Z", "timezone=Europe/London"]  # fmt: skip
    assert said("alkstore_schedules", "update", "nightly", *changes) == "nightly is updated\n"
    row = Schedule.objects.get()
    assert (row.payload, row.spec, row.priority) == ({"kind": "stock"}, "@every 5m", 7)
    assert (row.backoff, row.ends_at.year, row.timezone) == (None, 2999, "Europe/London")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("priority", "Expected KEY=VALUE, got 'priority'"),
        ("prio=3", "an option to be one of"),
        ("max_attempts=0", "max_attempts to be"),
        ("spec=* * * * *", "did you mean"),
        ("ends_at=2027-99-99T00:00", "ends_at to be"),
        ("timezone=Nowhere", "timezone to be"),
    ],
)
def test_an_update_that_is_wrong_changes_nothing_and_says_why(change, why):
    row = ScheduleFactory(name="nightly")
    with pytest.raises(CommandError, match=re.escape(why)):
        said("alkstore_schedules", "update", "nightly", "queue=other", change)
    assert Schedule.objects.get().queue == row.queue


def test_the_next_boundaries_are_shown_in_the_zone_of_the_schedule_and_in_utc():
    spec, zone = "@cron 30 2 * * *", "America/New_York"
    ScheduleFactory(name="nightly", spec=spec, timezone=zone,
                    next_fire_at=datetime(2027, 3, 13, 7, 30, tzinfo=zones.utc))  # fmt: skip
    head, *rows = said("alkstore_schedules", "next", "nightly", count=2).splitlines()
    assert head.split() == ["local", "UTC"]
    assert rows == [
        "2027-03-13 02:30:00-05:00  2027-03-13 07:30:00+00:00",
        "2027-03-14 03:00:00-04:00  2027-03-14 07:00:00+00:00  clocks forward 60 min",
    ]


def test_declared_schedules_are_put_in_force_and_the_changes_told(settings):
    ScheduleFactory(name="mine")
    entry = {"spec": "@every 5m", "queue": "reports"}
    settings.ALKSTORE = {"SCHEDULES": {"mine": entry, "new": entry}}
    told = said("alkstore_schedules", "sync")
    assert told == "new was added\nmine was made by hand, and stays as it is\n"
    settings.ALKSTORE = {"SCHEDULES": {"mine": entry, "new": {**entry, "queue": "other"}}}
    assert said("alkstore_schedules", "sync").startswith("new was changed\n")
    settings.ALKSTORE = {}
    assert said("alkstore_schedules", "sync") == "new was removed\n"
    assert said("alkstore_schedules", "sync") == "nothing to change\n"


def test_a_schedule_that_waits_for_its_job_or_has_ended_says_so():
    fire = FireFactory(schedule="waits", job_id=JobFactory(running=True).pk)
    ScheduleFactory(name="waits", overlap="queue", overdue=True, last_fired_at=fire.boundary)
    ScheduleFactory(name="over", next_fire_at=None, ended_at=ago())
    lines = {line.split()[0]: line for line in said("alkstore_schedules").splitlines()}
    assert " waits " in lines["waits"]
    assert " ended " in lines["over"]
