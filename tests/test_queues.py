"""Queues beyond the contract: what handlers do, rows made wrong behind our back, 0 as a value."""

import sqlite3
import sys
import uuid
from contextlib import contextmanager, suppress
from datetime import timedelta, timezone

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.backends.signals import connection_created
from django.utils import translation
from django.utils.timezone import activate, get_current_timezone_name

from django_alkstore import (
    InvalidOption,
    InvalidPayload,
    PermanentError,
    RetryLater,
    get_job,
    lock,
    outbox,
    queue,
)
from django_alkstore.models import Job, Lock
from django_alkstore.queues import SWEEP_SECONDS, process
from django_alkstore.sql import Peek
from testproject.shop.models import Order

from .factories import Instant, JobFactory, OrderFactory, ago, aware
from .processes import across_connections, held, in_threads, until

pytestmark = pytest.mark.django_db


def reports():
    """A handle that has not swept yet."""
    return queue("reports")


def claimed(**columns):
    JobFactory(**columns)
    return reports().claim("w")


def seconds_from_now(instant):
    return (instant - ago()).total_seconds()


def handler_that_raises(error):
    def handler(job):
        raise error

    return handler


# -- what a handler raises ------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self):  # noqa: PLE0307
        sys.exit("no text for you")

    def __repr__(self):  # for pytest: it would not survive the one above
        return "Unprintable()"


ERRORS = [
    ValueError("boom"),
    ValueError("\0 and \ud800 and \N{PILE OF POO}"),
    Unprintable(),
    RecursionError(),
    SystemExit(0),
    GeneratorExit(),
    RetryLater(0, "not yet"),
    RetryLater("soon"),
]


def run_until_over(id, handler):
    """Process the job as often as it comes back; how often that was."""
    entered = 0
    while job := reports().claim("w"):
        assert job.id == id
        entered += 1
        process(job, handler)
        Job.objects.filter(state="scheduled").update(due_at=ago(1))
    return entered


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_a_handler_is_entered_max_attempts_times_whatever_it_raises(max_attempts, error):
    id = JobFactory(max_attempts=max_attempts).id
    assert run_until_over(id, handler_that_raises(error)) == max_attempts
    row = get_job(id)
    assert (row.state, row.attempts) == ("dead", max_attempts)
    assert row.last_error
    assert type(error).__name__ in row.last_traceback


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_job_whose_worker_is_killed_each_time_is_entered_max_attempts_times(max_attempts):
    id = JobFactory(max_attempts=max_attempts).id
    good = JobFactory.create_batch(5, priority=-1)
    for attempt in range(1, max_attempts + 1):
        assert reports().claim("w").attempts == attempt
        Job.objects.filter(pk=id).update(due_at=ago(1))
    assert [job.id for job in reports().claim_batch("w", 10)] == [job.id for job in good]
    assert (get_job(id).state, get_job(id).last_error) == ("dead", "the last claim lapsed")


def test_a_handler_that_returns_anything_at_all_has_done_the_job():
    for value in (None, False, 0, RuntimeError("returned, not raised")):
        process(claimed(), lambda job, value=value: value)
    assert not Job.objects.exists()


def test_a_permanent_error_is_a_death_with_attempts_left():
    job = claimed()
    process(job, handler_that_raises(PermanentError("no such month")))
    row = get_job(job.id)
    assert (row.state, row.attempts, row.last_error) == ("dead", 1, "no such month")


@pytest.mark.parametrize(("delay", "wait"), [(1000, 1000), (timedelta(hours=1), 3600), (0, 0)])
def test_a_job_that_asks_to_be_retried_later_waits_exactly_that(delay, wait):
    job = claimed()
    process(job, handler_that_raises(RetryLater(delay)))
    assert seconds_from_now(get_job(job.id).run_at) == pytest.approx(wait, abs=2)
    assert get_job(job.id).state == ("scheduled" if wait else "ready")


@pytest.mark.parametrize("delay", ["soon", None, -1, float("nan"), 10**12, True])
def test_a_wrong_delay_is_an_ordinary_failure_on_the_curve(delay):
    job = claimed(backoff=100)
    process(job, handler_that_raises(RetryLater(delay)))
    assert seconds_from_now(get_job(job.id).due_at) == pytest.approx(100, abs=2)


def test_ctrl_c_in_a_handler_is_recorded_and_raised_again():
    job = claimed()
    with pytest.raises(KeyboardInterrupt):
        process(job, handler_that_raises(KeyboardInterrupt()))
    row = get_job(job.id)
    assert (row.state, row.last_error) == ("scheduled", "KeyboardInterrupt")


@across_connections
def test_a_keyboard_interrupt_off_the_main_thread_is_a_failure_like_any_other():
    job = claimed()
    in_threads(lambda: process(job, handler_that_raises(KeyboardInterrupt())))
    assert get_job(job.id).last_error == "KeyboardInterrupt"


def test_the_cause_of_an_error_is_in_the_traceback_of_the_row():
    def handler(job):
        try:
            {}["month"]
        except KeyError as exc:
            raise ValueError("bad report") from exc

    job = claimed()
    process(job, handler)
    assert "KeyError: 'month'" in get_job(job.id).last_traceback


def test_a_retry_that_succeeds_leaves_no_row():
    job = claimed()
    process(job, handler_that_raises(RetryLater(0)))
    process(reports().claim("w"), lambda job: None)
    assert get_job(job.id) is None


# -- what a handler leaves behind -----------------------------------------------------------------


def leaves_a_transaction_open(job):
    transaction.atomic().__enter__()
    OrderFactory()


def leaves_a_savepoint_open(job):
    transaction.atomic().__enter__()
    transaction.atomic().__enter__()
    OrderFactory()


def closes_the_connection(job):
    connection.close()


def closes_the_connection_in_a_transaction_that_it_leaves_open(job):
    transaction.atomic().__enter__()
    OrderFactory()
    connection.close()


def turns_autocommit_off(job):
    transaction.set_autocommit(False)
    OrderFactory()


def leaves_a_broken_transaction(job):
    transaction.atomic().__enter__()
    with suppress(IntegrityError), transaction.atomic():
        Lock.objects.bulk_create(Lock(name="twice", token=1, acquired_at=ago(), expires_at=ago())
                                 for _ in range(2))  # fmt: skip
    transaction.set_rollback(True)


def loses_the_server_connection(job):
    connection.ensure_connection()
    connection.connection.close()
    with suppress(Exception):
        Order.objects.exists()


MESSES = [
    leaves_a_transaction_open,
    leaves_a_savepoint_open,
    closes_the_connection,
    closes_the_connection_in_a_transaction_that_it_leaves_open,
    turns_autocommit_off,
    leaves_a_broken_transaction,
    loses_the_server_connection,
]


@across_connections
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("mess", MESSES)
def test_the_next_job_finds_a_clean_connection_whatever_the_last_one_left(mess, raises):
    def handler(job):
        mess(job)
        if raises:
            raise ValueError("boom")

    job = claimed()
    process(job, handler)
    outcomes = in_threads(lambda: (Order.objects.count(), getattr(get_job(job.id), "state", None)))
    assert outcomes == [(0, "scheduled" if raises else None)]
    assert transaction.get_autocommit()
    assert not connection.in_atomic_block
    process(claimed(), lambda job: OrderFactory())
    assert in_threads(Order.objects.count) == [1]


def test_the_next_job_finds_the_projects_zone_and_language(settings):
    def handler(job):
        seen.append((get_current_timezone_name(), translation.get_language()))
        activate("Asia/Tokyo")
        translation.activate("fr")

    seen = []
    with translation.override("de"):
        process(claimed(), handler)
        process(claimed(), handler)
        assert translation.get_language() == "de"
    assert seen == [(settings.TIME_ZONE, settings.LANGUAGE_CODE)] * 2


@across_connections
def test_no_transaction_is_open_while_a_handler_runs():
    seen = []
    process(claimed(), lambda job: seen.append(connection.in_atomic_block))
    assert seen == [False]


@across_connections
def test_a_transaction_that_the_caller_opened_is_left_alone():
    job = claimed()
    with transaction.atomic():
        process(job, handler_that_raises(ValueError("boom")))
        assert connection.in_atomic_block
        transaction.set_rollback(True)
    assert get_job(job.id).state == "running"


# -- a handler that settles its own job -----------------------------------------------------------


@pytest.mark.parametrize(
    ("settle", "state"),
    [
        (lambda job: job.ack(), None),
        (lambda job: job.retry("again", delay=0), "ready"),
        (lambda job: job.retry("again", delay=60), "scheduled"),
        (lambda job: job.fail("never"), "dead"),
        (lambda job: job.release(), "ready"),
    ],
)
@pytest.mark.parametrize("raises", [False, True])
def test_what_a_handler_did_with_its_own_job_stays(settle, state, raises, caplog):
    def handler(job):
        assert settle(job)
        if raises:
            raise ValueError("boom")

    job = claimed()
    process(job, handler)
    assert getattr(get_job(job.id), "state", None) == state
    assert "taken back" not in caplog.text


@across_connections
def test_a_retry_that_the_handlers_own_rollback_undid_is_not_lost():
    def handler(job):
        with transaction.atomic():
            OrderFactory()
            assert job.retry("mine", delay=1000)
            raise ValueError("boom")

    job = claimed(backoff=5)
    process(job, handler)
    row = get_job(job.id)
    assert (row.state, row.last_error, Order.objects.count()) == ("scheduled", "boom", 0)
    assert seconds_from_now(row.due_at) < 10


@across_connections
@pytest.mark.parametrize(("raises", "state"), [(False, None), (True, "scheduled")])
def test_an_ack_that_was_rolled_back_counts_for_nothing(raises, state):
    def handler(job):
        with transaction.atomic():
            assert job.ack()
            transaction.set_rollback(True)
        if raises:
            raise ValueError("boom")

    job = claimed()
    process(job, handler)
    assert getattr(get_job(job.id), "state", None) == state


@across_connections
def test_an_ack_in_the_handlers_transaction_commits_with_its_work():
    def handler(job):
        with transaction.atomic():
            OrderFactory()
            job.ack()

    process(claimed(), handler)
    assert (Order.objects.count(), Job.objects.count()) == (1, 0)


@pytest.mark.parametrize("error", [None, ValueError("boom"), PermanentError("boom")])
def test_a_worker_whose_claim_was_taken_back_says_so_and_changes_nothing(error, caplog):
    def handler(job):
        Job.objects.filter(pk=job.id).update(due_at=ago(1))
        assert reports().claim("another").attempts == 2
        if error:
            raise error

    job = claimed()
    process(job, handler)
    row = get_job(job.id)
    assert (row.state, row.worker_id, row.last_error) == ("running", "another", "the claim lapsed")
    assert "its claim had been taken back" in caplog.text


# -- payloads -------------------------------------------------------------------------------------


def test_what_a_handler_does_to_the_payload_never_reaches_the_row():
    def handler(job):
        payloads.append(dict(job.payload))
        job.payload.pop("month")
        job.payload["id"] = str(uuid.uuid4())
        raise RetryLater(0)

    payloads = []
    id = reports().enqueue({"month": 7})
    assert run_until_over(id, handler) == 3
    assert payloads == [{"month": 7}] * 3
    assert get_job(id).payload == {"month": 7}


@pytest.mark.parametrize("payload", [None, False, 0, "", "text", 1.5, [], [1, {"a": []}]])
def test_a_payload_need_not_be_a_dict(payload):
    seen = []
    reports().enqueue(payload)
    process(reports().claim("w"), lambda job: seen.append(job.payload))
    assert seen == [payload]


def spoil_the_payload(id):
    """Let the row hold what is no JSON, as a careless hand would."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA ignore_check_constraints = ON")
        cursor.execute("UPDATE django_alkstore_job SET payload = '{bad' WHERE id = %s", [id])
        cursor.execute("PRAGMA ignore_check_constraints = OFF")


def test_a_job_that_was_to_run_before_all_time_is_claimed_first(only_on):
    only_on("sqlite", "postgresql")
    job, odd = JobFactory(run_at=ago(900)), JobFactory()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_alkstore_job SET run_at = '-infinity' WHERE id = {odd.pk}")
    assert [claimed.id for claimed in queue("reports").claim_batch("w", 5)] == [odd.pk, job.pk]


def test_a_payload_that_is_no_json_is_retried_then_dead_and_others_run(only_on):
    only_on("sqlite")  # the others refuse it
    bad = JobFactory(priority=1, max_attempts=2, backoff=0).id
    spoil_the_payload(bad)
    good = JobFactory.create_batch(3)
    entered = []
    while job := reports().claim("w"):
        process(job, lambda job: entered.append(job.id))
    assert entered == [job.id for job in good]
    dead = get_job(bad)
    assert (dead.state, dead.attempts) == ("dead", 2)
    assert "expected a stored payload to be JSON, got '{bad'" in dead.last_error


def test_a_handle_on_a_payload_that_is_no_json_can_still_settle(only_on):
    only_on("sqlite")
    spoil_the_payload(JobFactory().id)
    job = reports().claim("w")
    with pytest.raises(InvalidPayload):
        job.payload  # noqa: B018
    assert get_job(job.id).payload == "{bad"
    assert job.ack() is True


# -- other rows made wrong behind our back --------------------------------------------------------


def test_wrong_rows_are_stepped_over_or_repaired_and_every_other_row_recovers(caplog):
    wrong = [
        JobFactory(running=True, due_at=None),
        JobFactory(running=True, due_at=None, claim_token=None, worker_id=None),
        JobFactory(lapsed=True, claim_token=None),
        JobFactory(lapsed=True, attempts=-5),
        JobFactory(scheduled=True, due_at=None),
        JobFactory(due_at=ago(10)),
        JobFactory(attempts=50),
    ]
    lapsed = JobFactory.create_batch(3, lapsed=True)
    finished = JobFactory(dead=True, due_at=ago(1)), JobFactory(done=True, due_at=ago(1))
    unknown = JobFactory(state="lost", due_at=ago(1))
    claimed = {job.id for job in reports().claim_batch("w", 100)}
    assert claimed == {job.id for job in (*wrong, *lapsed)}
    assert [get_job(job.id).state for job in (*finished, unknown)] == ["dead", "done", "lost"]
    assert "3 live jobs of reports had no due_at and were made due" in caplog.text


@pytest.mark.parametrize("backoff", [-5.0, 1e300])
def test_a_wrong_backoff_on_the_row_is_kept_between_none_and_the_maximum(backoff):
    job = claimed(backoff=backoff)
    process(job, handler_that_raises(ValueError("boom")))
    row = get_job(job.id)
    assert row.last_error == "boom"
    assert seconds_from_now(row.run_at) < 3_601


def test_attempts_beyond_all_measure_do_not_overflow_the_curve():
    job = claimed(attempts=2**31 - 10, max_attempts=2**31 - 1)
    assert job.retry("boom") is True
    assert seconds_from_now(get_job(job.id).due_at) == pytest.approx(3_600, abs=2)


# -- 0 is a value ---------------------------------------------------------------------------------


def test_no_delay_is_ready_at_once():
    assert get_job(reports().enqueue({}, delay=0)).state == "ready"
    assert get_job(reports().enqueue({}, delay=timedelta(0))).state == "ready"


def test_a_job_that_may_not_wait_at_all_dies_unstarted():
    id = reports().enqueue({}, expires_in=0)
    row = get_job(id)
    until(lambda: reports().engine.clock() >= aware(row.expires_at))
    assert reports().claim("w") is None
    assert (get_job(id).state, get_job(id).last_error) == ("dead", "expired before it could run")


def test_the_life_of_a_job_counts_from_the_instant_it_may_first_run():
    row = get_job(reports().enqueue({}, delay=100, expires_in=10))
    assert (row.expires_at - row.run_at).total_seconds() == pytest.approx(10, abs=0.01)
    at = Instant(2999, 1, 1, tzinfo=timezone.utc)
    row = get_job(reports().enqueue({}, run_at=at, expires_in=0))
    assert (row.run_at, row.expires_at, row.due_at) == (at, at, at)


def test_a_zero_or_none_of_the_call_wins_over_the_settings(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"priority": 5, "backoff": 9, "expires_in": 60}}}
    row = get_job(reports().enqueue({}, priority=0, backoff=0))
    assert (row.priority, row.backoff) == (0, 0)
    assert row.expires_at is not None
    assert get_job(reports().enqueue({}, expires_in=None)).expires_at is None


def test_a_zero_in_the_settings_is_stamped(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"backoff": 0, "expires_in": 0}}}
    row = get_job(reports().enqueue({}))
    assert row.backoff == 0
    assert row.expires_at - row.run_at < timedelta(seconds=0.01)


def test_without_backoff_a_retry_is_ready_at_once():
    job = claimed(backoff=0)
    assert job.retry("boom") is True
    assert get_job(job.id).state == "ready"


def test_fractions_of_a_second_are_kept():
    row = get_job(reports().enqueue({}, visibility_timeout=0.5, backoff=0.25, delay=0.5))
    assert (row.visibility_timeout, row.backoff) == (0.5, 0.25)
    assert (row.run_at - row.created_at).total_seconds() == pytest.approx(0.5, abs=0.01)
    Job.objects.update(due_at=ago(1))
    before = reports().engine.clock()
    job = reports().claim("w")
    after = reports().engine.clock()
    half = timedelta(seconds=0.5)
    fuzz = timedelta(milliseconds=1)
    assert before + half - fuzz <= aware(job.claim_expires_at) <= after + half + fuzz
    assert job.heartbeat(extend=0.25) is True
    quarter = timedelta(seconds=0.25)
    assert aware(job.claim_expires_at) <= reports().engine.clock() + quarter + fuzz


@pytest.mark.parametrize("extend", [0, -1, "60", True, float("inf")])
def test_a_heartbeat_that_would_hold_nothing_is_refused(extend):
    job = claimed()
    with pytest.raises(InvalidOption, match="expected extend"):
        job.heartbeat(extend)


@pytest.mark.parametrize("delay", [-1, "5", True, float("nan"), 10**12])
def test_a_wrong_retry_delay_is_refused_and_the_claim_kept(delay):
    job = claimed(max_attempts=1)
    with pytest.raises(InvalidOption, match="expected delay"):
        job.retry("boom", delay=delay)
    assert job.ack() is True


@pytest.mark.parametrize("n", [0, -1, 1_001, 1.0, "1", None, True])
def test_a_wrong_batch_size_is_refused_before_any_statement(n, statements):
    with pytest.raises(InvalidOption, match="expected n"):
        reports().claim_batch("w", n)
    assert len(statements) == 0


@pytest.mark.parametrize("id", ["1", None, 1.0, True, -1, 2**63])
def test_a_wrong_job_id_is_refused_before_any_statement(id, statements):
    with pytest.raises(InvalidOption, match="expected job_id"):
        reports().cancel(id)
    with pytest.raises(InvalidOption, match="expected job_id"):
        get_job(id)
    assert len(statements) == 0


@pytest.mark.parametrize("jobs", [[None], [1]])
def test_ack_batch_takes_claimed_jobs_alone(jobs):
    with pytest.raises(InvalidOption, match="expected claimed_jobs"):
        reports().ack_batch(jobs)


# -- transactions ---------------------------------------------------------------------------------


@across_connections
def test_a_job_committed_late_with_a_lower_id_is_still_claimed(only_on):
    only_on("postgresql", "mysql")  # SQLite has one writer at a time

    @contextmanager
    def enqueued_but_not_committed():
        with transaction.atomic():
            late.append(reports().enqueue({}))
            yield

    late = []
    handle = reports()
    with held(enqueued_but_not_committed):
        early = handle.enqueue({})
        assert late[0] < early
        assert handle.claim("w").id == early
        assert handle.claim("w") is None
    assert handle.claim("w").id == late[0]


@across_connections
def test_business_rows_are_rolled_back_with_an_enqueue_that_fails():
    def refuse_jobs(execute, text, params, many, context):
        if "INSERT INTO django_alkstore_job" in text:
            raise IntegrityError("the disk is full")
        return execute(text, params, many, context)

    with (
        connection.execute_wrapper(refuse_jobs),
        pytest.raises(IntegrityError),
        transaction.atomic(),
    ):
        OrderFactory()
        reports().enqueue_tx({})
    assert not Order.objects.exists()


def test_a_refused_payload_does_not_break_the_callers_transaction():
    with transaction.atomic():
        OrderFactory()
        with pytest.raises(InvalidPayload):
            reports().enqueue_tx({"at": object()})
        reports().enqueue_tx({})
    assert (Order.objects.count(), Job.objects.count()) == (1, 1)


def test_nothing_is_left_to_the_commit(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks() as callbacks, transaction.atomic():
        reports().enqueue_tx({})
        outbox("receipts").enqueue_tx({})
        job = reports().claim("w")
        job.retry("boom", delay=0)
        lock("import").acquire()
    assert callbacks == []


# -- what it costs --------------------------------------------------------------------------------


def database_changes(call):
    """Whether ``call`` committed anything, as another connection sees it."""
    other = sqlite3.connect(connection.settings_dict["NAME"])
    try:
        before = other.execute("PRAGMA data_version").fetchone()
        call()
        return other.execute("PRAGMA data_version").fetchone() != before
    finally:
        other.close()


@across_connections
def test_a_claim_that_finds_nothing_writes_nothing(only_on):
    only_on("sqlite")
    JobFactory(scheduled=True)
    JobFactory(running=True)
    JobFactory(dead=True)
    assert not database_changes(lambda: reports().claim("w"))
    assert not database_changes(lambda: outbox("receipts").run_once("w", print))
    JobFactory()
    assert database_changes(lambda: reports().claim("w"))


@across_connections
def test_first_use_inside_a_transaction_needs_no_second_connection_and_no_ddl(only_on, statements):
    only_on("sqlite")

    def use_everything():
        with transaction.atomic():
            OrderFactory()
            reports().enqueue_tx({})
            outbox("receipts").enqueue_tx({})
            assert lock("import").acquire()
            assert reports().claim("w").ack()
        connections_opened.append("ours")

    def opened(**kwargs):
        connections_opened.append("another")

    connections_opened = []
    connection.ensure_connection()
    connection_created.connect(opened)
    try:
        use_everything()
    finally:
        connection_created.disconnect(opened)
    assert connections_opened == ["ours"]
    verbs = {query["sql"].split()[0] for query in statements.captured_queries}
    assert verbs <= {"BEGIN", "COMMIT", "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "SAVEPOINT",
                     "RELEASE"}  # fmt: skip


def statements_of(call):
    """How many statements ``call`` sends."""
    sent = []

    def count(execute, text, params, many, context):
        sent.append(text)
        return execute(text, params, many, context)

    with connection.execute_wrapper(count):
        call()
    return len(sent)


def test_a_thousand_jobs_cost_as_many_statements_as_one():
    one, many = reports(), reports()
    one.claim("w"), many.claim("w")
    assert statements_of(lambda: one.enqueue_many([{}])) <= 2
    assert statements_of(lambda: one.enqueue_many([{}] * 1_000)) <= 2
    jobs = []
    of_one = statements_of(lambda: one.claim("w"))
    of_many = statements_of(lambda: jobs.extend(many.claim_batch("w", 500)))
    assert len(jobs) == 500
    assert of_one == of_many
    assert statements_of(lambda: many.ack_batch(jobs)) == 1


def test_each_verb_of_a_handle_is_one_statement_and_a_heartbeat_two():
    JobFactory.create_batch(6)
    jobs = iter(reports().claim_batch("w", 6))
    assert statements_of(next(jobs).ack) == 1
    assert statements_of(next(jobs).fail) == 1
    assert statements_of(next(jobs).retry) == 1
    assert statements_of(next(jobs).release) == 1
    assert statements_of(next(jobs).heartbeat) <= 2


# -- a handle of a worker's, which comes back every moment ----------------------------------------


def looking():
    """Such a handle that has just looked at everything, and left nothing."""
    handle = reports()
    handle.looked_at = float("-inf")
    assert handle.claim("w") is None
    assert handle.lately() is not None
    return handle


def test_between_two_looks_at_everything_a_worker_finds_what_comes_in():
    handle = looking()
    ready, due = handle.enqueue("ready"), JobFactory(scheduled=True, run_at=ago(1))
    lapsed = JobFactory(lapsed=True, run_at=ago(3_600))
    assert {job.id for job in handle.claim_batch("w", 9)} == {ready, due.id, lapsed.id}


def test_what_was_to_run_long_ago_is_found_by_the_next_look_at_everything():
    handle = looking()
    old = JobFactory(run_at=ago(3_600))
    assert handle.claim("w") is None
    assert reports().claim_batch("w", 9)[0].release()  # who does not come back looks at everything
    handle.looked_at -= SWEEP_SECONDS
    assert handle.claim("w").id == old.id


def test_a_worker_that_has_left_something_looks_at_everything_again(monkeypatch):
    monkeypatch.setattr("django_alkstore.sql.SWEEP_ROWS", 1)
    handle = looking()
    handle.looked_at -= SWEEP_SECONDS
    JobFactory.create_batch(2)
    handle.claim("w")
    assert handle.lately() is None  # it got all it asked for
    JobFactory.create_batch(4, lapsed=True, due_at=ago(3_600))
    assert len(handle.claim_batch("w", 9)) < 5
    assert handle.lately() is None  # more claims have lapsed than it swept
    until(lambda: not handle.claim_batch("w", 9))
    assert not Job.objects.exclude(worker_id="w").exists()


def test_a_peek_of_late_looks_no_further_back_and_no_further_ahead():
    engine = reports().engine
    JobFactory(run_at=ago(3_600)), JobFactory(scheduled=True, run_at=ago(-3_600))
    assert engine.peek_lately(["reports"], 60, 5) == Peek(ready=False, seconds=5)
    JobFactory(running=True, due_at=ago(-3))
    assert engine.peek_lately(["reports"], 60, 5).seconds == pytest.approx(3, abs=1)
    JobFactory()
    assert engine.peek_lately(["reports"], 60, 5).ready
