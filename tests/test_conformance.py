"""The contract of queues, claims, locks and outboxes, as every database must keep it."""

import sys
from itertools import chain

import pytest
from django.db import connection, transaction

from django_alkstore import (
    ClaimedJob,
    LockHeld,
    PermanentError,
    TransactionRequired,
    enqueue_tx,
    get_job,
    lock,
    outbox,
    outbox_enqueue_tx,
    queue,
)
from django_alkstore.models import Job, Lock
from django_alkstore.sql import SWEEP_ROWS

from .factories import JobFactory, LockFactory, ago
from .processes import across_connections, in_threads, until

pytestmark = pytest.mark.django_db


def reports():
    """A handle that has not swept yet."""
    return queue("reports")


def stored(job):
    """Every column of the row, or None once it is gone."""
    return Job.objects.filter(pk=job.id).values().first()


def lapse(job):
    Job.objects.filter(pk=job.id).update(due_at=ago(1))


# -- enqueueing -----------------------------------------------------------------------------------


def test_an_enqueued_job_is_ready_with_its_defaults_stamped():
    job = get_job(reports().enqueue({"month": 7}))
    assert (job.queue, job.state, job.payload) == ("reports", "ready", {"month": 7})
    assert (job.visibility_timeout, job.max_attempts, job.backoff) == (300, 3, 5)
    assert (job.priority, job.attempts, job.expires_at, job.due_at) == (0, 0, None, None)


def test_the_options_of_the_call_are_stamped():
    options = {"priority": 7, "max_attempts": 1, "visibility_timeout": 2.5, "backoff": 0.25}
    job = get_job(reports().enqueue(None, **options, expires_in=60))
    assert {name: getattr(job, name) for name in options} == options
    assert (job.expires_at - job.run_at).total_seconds() == pytest.approx(60, abs=0.01)


def test_a_delayed_job_is_scheduled_and_due_when_it_may_run():
    job = get_job(reports().enqueue(None, delay=60))
    assert job.state == "scheduled"
    assert job.due_at == job.run_at
    assert (job.run_at - job.created_at).total_seconds() == pytest.approx(60, abs=0.01)


def test_a_job_may_be_given_the_instant_at_which_it_runs():
    at = ago(-3600)
    job = get_job(reports().enqueue(None, run_at=at))
    assert (job.state, job.run_at, job.due_at) == ("scheduled", at, at)


def test_a_job_whose_instant_has_passed_is_ready():
    job = get_job(reports().enqueue(None, run_at=ago(3600)))
    assert (job.state, job.due_at) == ("ready", None)


@across_connections
def test_enqueue_commits_by_itself():
    id = reports().enqueue({})
    assert in_threads(lambda: get_job(id).state) == ["ready"]


@across_connections
def test_enqueue_joins_an_open_transaction():
    with transaction.atomic():
        id = reports().enqueue({})
        transaction.set_rollback(True)
    assert get_job(id) is None


@across_connections
@pytest.mark.parametrize(
    "enqueue",
    [
        lambda: enqueue_tx("reports", {}),
        lambda: queue("reports").enqueue_tx({}),
        lambda: outbox("receipts").enqueue_tx({}),
        lambda: outbox_enqueue_tx("receipts", {}),
    ],
)
def test_enqueue_tx_outside_a_transaction_is_refused_and_writes_nothing(enqueue):
    with pytest.raises(TransactionRequired, match="expected enqueue_tx"):
        enqueue()
    assert not Job.objects.exists()


def test_the_transaction_that_wraps_a_test_is_none_for_enqueue_tx():
    assert connection.in_atomic_block
    with pytest.raises(TransactionRequired):
        enqueue_tx("reports", {})


def test_enqueue_tx_enqueues_in_the_open_transaction():
    with transaction.atomic():
        id = enqueue_tx("reports", {"month": 7}, priority=2)
    assert (get_job(id).payload, get_job(id).priority) == ({"month": 7}, 2)


def test_enqueue_many_returns_the_ids_in_the_order_of_the_payloads():
    ids = reports().enqueue_many(range(1_500), priority=3)
    rows = Job.objects.filter(priority=3).in_bulk(ids)
    assert [rows[id].payload for id in ids] == list(range(1_500))


def test_enqueue_many_of_nothing_writes_nothing(statements):
    assert reports().enqueue_many([]) == []
    assert len(statements) == 0


class SecondInsertFails:
    """The second INSERT of jobs is refused before it reaches the server."""

    inserts = 0

    def __call__(self, execute, text, params, many, context):
        self.inserts += "INSERT INTO django_alkstore_job" in text
        if self.inserts == 2:
            raise OSError("the disk is full")
        return execute(text, params, many, context)


@across_connections
def test_enqueue_many_is_all_or_none_over_several_statements():
    with connection.execute_wrapper(SecondInsertFails()), pytest.raises(OSError):
        reports().enqueue_many(range(1_500))
    assert not Job.objects.exists()


# -- claiming -------------------------------------------------------------------------------------


def test_an_empty_queue_has_nothing_to_claim():
    JobFactory(queue="others")
    assert reports().claim("w") is None
    assert reports().claim_batch("w", 10) == []


def test_a_claim_shows_what_was_enqueued():
    at = ago(3600)
    row = JobFactory(payload={"month": 7}, schedule="monthly", scheduled_for=at)
    job = reports().claim("w")
    assert (job.id, job.queue, job.payload) == (row.id, "reports", {"month": 7})
    assert (job.attempts, job.max_attempts, job.worker_id) == (1, 3, "w")
    assert (job.schedule, job.scheduled_for, job.created_at) == ("monthly", at, row.created_at)
    assert job.idempotency_key


def test_a_claim_is_written_on_the_row():
    JobFactory(visibility_timeout=60)
    job = reports().claim("w")
    row = get_job(job.id)
    assert (row.state, row.attempts, row.worker_id) == ("running", 1, "w")
    assert row.claim_token == job.claim_token
    assert row.claim_expires_at == row.due_at
    assert (row.due_at - job.claim_expires_at).total_seconds() == pytest.approx(0, abs=0.5)


def test_a_claimed_job_is_not_claimed_again():
    JobFactory()
    assert reports().claim("w")
    assert reports().claim("w") is None


def test_jobs_come_by_priority_then_run_at_then_id():
    late, early = ago(10), ago(20)
    rows = [
        JobFactory(priority=0, run_at=late),
        JobFactory(priority=0, run_at=early),
        JobFactory(priority=0, run_at=early),
        JobFactory(priority=-(2**31), run_at=early),
        JobFactory(priority=2**31 - 1, run_at=late),
    ]
    expected = [rows[index].id for index in (4, 1, 2, 0, 3)]
    batch = reports().claim_batch("w", 5)
    assert [job.id for job in batch] == expected
    assert [job.release() for job in batch] == [True] * 5
    assert [reports().claim("w").id for _ in rows] == expected


def test_equal_jobs_come_in_the_order_of_their_insertion():
    with transaction.atomic():
        one_by_one = [enqueue_tx("reports", {}) for _ in range(50)]
    at_once = reports().enqueue_many([{}] * 200)
    claimed = [job.id for job in reports().claim_batch("w", 1_000)]
    assert claimed == one_by_one + at_once


def test_low_priority_waits_while_there_is_higher():
    low = reports().enqueue({})
    for _ in range(5):
        high = reports().enqueue({}, priority=5)
        assert reports().claim("w").id == high
    assert reports().claim("w").id == low


def test_a_batch_never_exceeds_n():
    JobFactory.create_batch(5)
    assert [len(reports().claim_batch("w", n)) for n in (1, 3, 10)] == [1, 3, 1]


def test_a_batch_shares_one_claim_token_and_the_next_has_another():
    JobFactory.create_batch(4)
    first, second = reports().claim_batch("w", 2), reports().claim_batch("w", 2)
    assert len({job.claim_token for job in first}) == 1
    assert first[0].claim_token != second[0].claim_token


def test_a_claim_in_a_block_that_rolls_back_never_happened():
    id = JobFactory().id
    with transaction.atomic():
        reports().claim("w")
        transaction.set_rollback(True)
    assert (get_job(id).state, get_job(id).attempts) == ("ready", 0)


def test_neither_a_delayed_nor_a_finished_job_is_claimed():
    JobFactory(scheduled=True)
    JobFactory(dead=True)
    JobFactory(done=True)
    assert reports().claim("w") is None


def test_an_expired_job_is_never_claimed_although_nothing_has_swept_it():
    sweeper = reports()
    sweeper.claim("w")  # so that the next claim does not sweep first
    JobFactory(expired=True)
    live = JobFactory()
    assert [job.id for job in sweeper.claim_batch("w", 1)] == [live.id]


CLAIMER = """
import django; django.setup()
from django_alkstore import queue
from django_alkstore.models import Job
reports = queue("reports")
print("waiting", flush=True)
while Job.objects.filter(state="running").count() < {jobs}:
    for job in reports.claim_batch("w", {n}):
        print("claimed", job.id, flush=True)
"""


@across_connections
@pytest.mark.parametrize("n", [1, 10])
def test_eight_threads_claim_every_job_once(n):
    ids = reports().enqueue_many([{}] * 200)

    def claim_all():
        mine, handle = [], reports()
        while batch := handle.claim_batch("w", n):
            assert len(batch) <= n
            mine += [job.id for job in batch]
        return mine

    claimed = chain(*in_threads(*[claim_all] * 8))
    assert sorted(claimed) == ids


@across_connections
def test_four_processes_claim_every_job_once(start):
    script = CLAIMER.format(jobs=400, n=3)
    claimers = [start(argv=[sys.executable, "-c", script]) for _ in range(4)]
    for claimer in claimers:
        claimer.until_says("waiting")
    ids = reports().enqueue_many([{}] * 400)
    assert [claimer.wait() for claimer in claimers] == [0] * 4
    output = "".join(claimer.text for claimer in claimers).split()
    assert sorted(int(word) for word in output if word.isdigit()) == ids


# -- writing back ---------------------------------------------------------------------------------


def claimed(**columns):
    JobFactory(**columns)
    return reports().claim("w")


def test_an_acked_job_is_gone():
    job = claimed()
    assert job.ack() is True
    assert get_job(job.id) is None


def test_an_acked_job_is_kept_as_done_where_the_queue_retains(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"retention": 3600}}}
    job = claimed()
    assert job.ack() is True
    row = get_job(job.id)
    assert (row.state, row.attempts, row.due_at) == ("done", 1, None)
    assert row.finished_at >= row.created_at
    assert reports().claim("w") is None


def test_ack_batch_says_how_many_were_still_ours():
    JobFactory.create_batch(3)
    ours = reports().claim_batch("w", 3)
    ours[1].release()
    assert reports().ack_batch(iter(ours)) == 2
    assert [job.id for job in Job.objects.all()] == [ours[1].id]


def test_release_batch_says_how_many_were_still_ours():
    JobFactory.create_batch(3)
    ours = reports().claim_batch("w", 3)
    ours[1].ack()
    assert reports().release_batch(ours) == 2
    assert {(job.state, job.attempts) for job in Job.objects.all()} == {("ready", 0)}


def test_ack_batch_takes_jobs_of_several_claims():
    JobFactory.create_batch(4)
    jobs = reports().claim_batch("w", 2) + reports().claim_batch("v", 2)
    assert reports().ack_batch(jobs) == 4
    assert not Job.objects.exists()


def test_ack_batch_of_nothing_is_nothing():
    assert reports().ack_batch([]) == 0


def test_a_failed_job_is_dead_with_its_reason():
    job = claimed()
    assert job.fail("no such month") is True
    row = get_job(job.id)
    assert (row.state, row.last_error, row.due_at) == ("dead", "no such month", None)
    assert row.finished_at is not None
    assert reports().claim("w") is None


def test_a_retried_job_waits_on_the_curve():
    job = claimed(attempts=1, max_attempts=5, backoff=30)
    assert job.attempts == 2
    assert job.retry("later, please") is True
    row = get_job(job.id)
    assert (row.state, row.last_error, row.worker_id) == ("scheduled", "later, please", None)
    assert row.due_at == row.run_at
    assert (row.due_at - ago()).total_seconds() == pytest.approx(60, abs=10)


def test_a_retry_with_a_delay_waits_exactly_that():
    job = claimed()
    assert job.retry(delay=1000) is True
    assert (get_job(job.id).due_at - ago()).total_seconds() == pytest.approx(1000, abs=10)


def test_a_retry_without_delay_is_ready_at_once_behind_those_that_wait():
    job, other = claimed(), JobFactory()
    assert job.retry(delay=0) is True
    assert [job.id for job in reports().claim_batch("w", 2)] == [other.id, job.id]


def test_a_retry_of_the_last_attempt_is_a_death_with_that_error():
    job = claimed(max_attempts=1)
    assert job.retry("gave up", delay=0) is True
    assert (get_job(job.id).state, get_job(job.id).last_error) == ("dead", "gave up")


def test_a_heartbeat_holds_the_claim_from_now():
    job = claimed(visibility_timeout=60)
    lapse(job)
    assert job.heartbeat() is True
    assert (get_job(job.id).due_at - ago()).total_seconds() == pytest.approx(60, abs=10)
    assert job.heartbeat(extend=1000) is True
    assert job.claim_expires_at == get_job(job.id).due_at
    assert (job.claim_expires_at - ago()).total_seconds() == pytest.approx(1000, abs=10)


def test_a_released_job_has_its_place_and_its_attempt_back():
    job, _ = claimed(), JobFactory()
    assert job.release() is True
    row = get_job(job.id)
    assert (row.state, row.attempts, row.worker_id) == ("ready", 0, None)
    assert reports().claim("w").id == job.id


def test_a_lapsed_claim_is_acked_if_nobody_took_it_back():
    job = claimed()
    lapse(job)
    assert job.ack() is True
    assert get_job(job.id) is None


@pytest.mark.parametrize("verb", ["fail", "retry", "heartbeat", "release"])
def test_a_lapsed_claim_that_nobody_took_back_is_still_ours(verb):
    job = claimed()
    lapse(job)
    assert getattr(job, verb)() is True


VERBS = {
    "ack": ClaimedJob.ack,
    "ack_batch": lambda job: reports().ack_batch([job]) > 0,
    "fail": lambda job: job.fail("too late"),
    "retry": lambda job: job.retry("too late", delay=0),
    "heartbeat": ClaimedJob.heartbeat,
    "release": ClaimedJob.release,
    "release_batch": lambda job: reports().release_batch([job]) > 0,
}


def taken_by_another(job):
    lapse(job)
    assert reports().claim("another").id == job.id


def taken_by_the_same_worker(job):
    lapse(job)
    assert reports().claim(job.worker_id).id == job.id


def taken_and_acked(job):
    lapse(job)
    assert reports().claim("another").ack()


def taken_and_retried(job):
    lapse(job)
    assert reports().claim("another").retry(delay=60)


def swept_to_ready(job):
    lapse(job)
    reports().engine.sweep("reports")
    assert get_job(job.id).state == "ready"


def swept_to_dead(job):
    Job.objects.filter(pk=job.id).update(attempts=3)
    lapse(job)
    reports().engine.sweep("reports")
    assert get_job(job.id).state == "dead"


TAKEN_BACK = [
    taken_by_another,
    taken_by_the_same_worker,
    taken_and_acked,
    taken_and_retried,
    swept_to_ready,
    swept_to_dead,
]


@pytest.mark.parametrize("take_back", TAKEN_BACK)
@pytest.mark.parametrize("verb", VERBS)
def test_a_handle_whose_claim_was_taken_back_changes_nothing(verb, take_back):
    job = claimed()
    take_back(job)
    before = stored(job)
    assert VERBS[verb](job) is False
    assert stored(job) == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("end", ["ack", "fail", "retry", "release"])
def test_a_handle_that_ended_its_claim_changes_nothing_more(verb, end):
    job = claimed()
    assert getattr(job, end)() is True
    before = stored(job)
    assert VERBS[verb](job) is False
    assert stored(job) == before


def test_a_done_row_is_beyond_its_handle(settings):
    settings.ALKSTORE = {"QUEUES": {"reports": {"retention": 3600}}}
    job = claimed()
    job.ack()
    before = stored(job)
    assert [verb(job) for verb in VERBS.values()] == [False] * len(VERBS)
    assert stored(job) == before


@across_connections
def test_of_a_late_ack_and_a_takeover_at_once_exactly_one_wins():
    for _ in range(10):
        job = claimed()
        lapse(job)
        acked, taken = in_threads(job.ack, lambda: reports().claim("another"))
        # The ack that loses may hold the row just when the claim looks, which then passes it by.
        taken = taken or reports().claim("another")
        assert acked is (taken is None)
        Job.objects.all().delete()


# -- cancelling, and jobs of other queues ---------------------------------------------------------


@pytest.mark.parametrize("state", [{}, {"scheduled": True}])
def test_a_job_that_waits_can_be_cancelled(state):
    id = JobFactory(**state).id
    assert reports().cancel(id) is True
    row = get_job(id)
    assert (row.state, row.last_error, row.due_at) == ("dead", "cancelled", None)
    assert reports().cancel(id) is False


@pytest.mark.parametrize("state", ["running", "dead", "done"])
def test_a_job_that_does_not_wait_cannot_be_cancelled(state):
    job = JobFactory(**{state: True})
    before = stored(job)
    assert reports().cancel(job.id) is False
    assert stored(job) == before


def test_a_job_of_another_queue_is_out_of_reach():
    waiting, running = JobFactory(queue="others"), JobFactory(queue="others", priority=1)
    job = queue("others").claim("w")
    assert job.id == running.id
    assert reports().cancel(waiting.id) is False
    assert reports().ack_batch([job]) == 0
    assert reports().release_batch([job]) == 0
    assert reports().claim("w") is None
    assert get_job(waiting.id).state == "ready"
    assert get_job(running.id).state == "running"


def test_queue_names_differ_by_case():
    JobFactory(queue="Reports")
    assert reports().claim("w") is None


def test_get_job_of_an_unknown_id_is_none():
    assert get_job(10**15) is None


# -- what time alone changes ----------------------------------------------------------------------


def test_a_delayed_job_is_claimed_once_its_time_has_come():
    id = JobFactory(scheduled=True, run_at=ago(1)).id
    assert reports().claim("w").id == id


def test_a_lapsed_claim_comes_back_with_its_place_and_its_attempt_counted():
    JobFactory(run_at=ago(30))
    id = JobFactory(lapsed=True, priority=10).id
    job = reports().claim("w")
    assert (job.id, job.attempts) == (id, 2)
    assert get_job(id).last_error == "the claim lapsed"


def test_a_claim_that_has_not_lapsed_stays():
    JobFactory(running=True)
    assert reports().claim("w") is None


def test_a_lapsed_last_claim_is_a_death_with_a_reason():
    id = JobFactory(lapsed=True, attempts=3).id
    assert reports().claim("w") is None
    row = get_job(id)
    assert (row.state, row.last_error) == ("dead", "the last claim lapsed")
    assert (row.due_at, row.claim_token) == (None, None)
    assert row.finished_at is not None


@pytest.mark.parametrize(
    "state", [{}, {"scheduled": True}, {"running": True, "due_at": ago(1)}], ids=str
)
def test_an_expired_job_is_a_death_with_a_reason(state):
    id = JobFactory(**{"due_at": ago(1), **state}, expires_at=ago(1)).id
    assert reports().claim("w") is None
    row = get_job(id)
    assert (row.state, row.last_error, row.due_at) == ("dead", "expired before it could run", None)


def test_a_job_whose_expiry_passes_while_it_runs_is_acked():
    job = claimed(expires_at=ago(-60), due_at=ago(-60))
    Job.objects.filter(pk=job.id).update(expires_at=ago(1))
    assert reports().claim("w") is None
    assert job.ack() is True


def test_an_expiry_survives_release_and_retry():
    job = claimed(expires_at=ago(-60), due_at=ago(-60))
    assert job.release()
    assert get_job(job.id).due_at == get_job(job.id).expires_at
    assert reports().claim("w").retry(delay=3600)
    row = get_job(job.id)
    assert row.due_at == row.expires_at < row.run_at


def test_new_and_lapsed_jobs_are_claimed_side_by_side():
    JobFactory.create_batch(3, lapsed=True)
    JobFactory.create_batch(3)
    assert len(reports().claim_batch("w", 6)) == 6


def test_a_job_behind_more_expired_ones_than_a_sweep_takes_is_found_by_one_claim():
    expired = JobFactory.build_batch(2_100, expired=True)
    Job.objects.bulk_create(expired)
    id = JobFactory(scheduled=True, run_at=ago(0)).id
    assert reports().claim("w").id == id
    assert Job.objects.filter(state="dead").count() == 2_100


def test_a_sweep_is_bounded_and_says_that_there_is_more():
    Job.objects.bulk_create(JobFactory.build_batch(SWEEP_ROWS + 1, expired=True))
    engine = reports().engine
    first, second = engine.sweep("reports"), engine.sweep("reports")
    assert (first.died, first.full) == (SWEEP_ROWS, True)
    assert (second.died, second.full) == (1, False)


def test_a_backlog_that_never_ends_cannot_starve_what_time_brings_back():
    handle = reports()
    handle.claim("w")
    stale = JobFactory(lapsed=True, priority=10)

    def claim_one_of_many():
        JobFactory.create_batch(2)
        return handle.claim("w").id

    until(lambda: claim_one_of_many() == stale.id)


@pytest.mark.parametrize("state", ["running", "scheduled"])
def test_a_live_row_without_due_at_is_repaired(state):
    id = JobFactory(**{state: True, "due_at": None}).id
    assert reports().claim("w").id == id


@pytest.mark.parametrize("state", ["dead", "done"])
def test_a_finished_row_with_a_due_at_stays_finished_and_wakes_nobody(state):
    job = JobFactory(**{state: True, "due_at": ago(1)})
    handle = reports()
    before = stored(job)
    assert handle.claim("w") is None
    assert {**stored(job), "due_at": None} == {**before, "due_at": None}
    assert seconds_until_due() is None


def seconds_until_due():
    return reports().engine.peek(["reports", "others"]).seconds


def test_the_soonest_due_row_says_how_long_to_sleep():
    assert seconds_until_due() is None
    JobFactory(queue="others", scheduled=True, run_at=ago(-600))
    assert seconds_until_due() == pytest.approx(600, abs=10)
    JobFactory(running=True, due_at=ago(-60))
    assert seconds_until_due() == pytest.approx(60, abs=10)
    JobFactory(lapsed=True)
    assert seconds_until_due() == 0


# -- locks ----------------------------------------------------------------------------------------


def test_a_lock_is_held_by_one_at_a_time():
    first, second = lock("import"), lock("import")
    assert first.acquire() is True
    assert second.acquire() is False
    assert first.acquire() is False
    assert lock("export").acquire() is True
    assert first.release() is True
    assert second.acquire() is True


def test_a_lapsed_lock_is_taken_over_and_lost_to_its_first_holder():
    first = lock("import")
    first.acquire()
    Lock.objects.update(expires_at=ago(1))
    second = lock("import")
    assert second.acquire() is True
    expires_at = Lock.objects.get().expires_at
    assert first.renew() is False
    assert first.release() is False
    assert Lock.objects.get().expires_at == expires_at
    assert lock("import").acquire() is False


def test_a_lapsed_lock_that_nobody_took_is_renewed_and_released():
    mine = lock("import", ttl=30)
    mine.acquire()
    Lock.objects.update(expires_at=ago(1))
    assert mine.renew() is True
    assert lock("import").acquire() is False
    assert (Lock.objects.get().expires_at - ago()).total_seconds() == pytest.approx(30, abs=10)
    assert mine.release() is True


def test_the_token_grows_with_every_acquisition_after_a_release_too():
    tokens, owners = [], set()
    for _ in range(3):
        mine = lock("import")
        mine.acquire()
        tokens.append(mine.token)
        owners.add(mine.owner)
        mine.release()
    mine.acquire()
    Lock.objects.update(expires_at=ago(1))
    mine.acquire()
    tokens.append(mine.token)
    assert tokens == sorted(set(tokens))
    assert len(owners) == 3


@across_connections
@pytest.mark.parametrize("stale", [True, False])
def test_of_eight_threads_exactly_one_gets_in(stale):
    for n in range(5):
        name = f"lock-{n}"
        if stale:
            LockFactory(name=name, token=5, expires_at=ago(1))
        assert sorted(in_threads(*[lock(name).acquire] * 8)) == [False] * 7 + [True]
        assert Lock.objects.get(name=name).token == (6 if stale else 1)


LOCKER = """
import django; django.setup()
from django_alkstore import lock
from django_alkstore.models import Lock
print("waiting", flush=True)
while not Lock.objects.exists():
    pass
print("acquired", lock("import").acquire(), flush=True)
"""


@across_connections
def test_of_four_processes_exactly_one_takes_a_stale_lock_over(start):
    lockers = [start(argv=[sys.executable, "-c", LOCKER]) for _ in range(4)]
    for locker in lockers:
        locker.until_says("waiting")
    LockFactory(name="import", token=5, expires_at=ago(1))
    assert [locker.wait() for locker in lockers] == [0] * 4
    assert sorted("True" in locker.text for locker in lockers) == [False] * 3 + [True]
    assert Lock.objects.get().token == 6


def test_a_block_that_cannot_have_the_lock_is_not_entered():
    LockFactory(name="import")
    with pytest.raises(LockHeld, match="import"), lock("import"):
        pytest.fail("entered")


def test_the_lock_is_free_after_the_block():
    with lock("import") as held_lock:
        assert held_lock.token == 1
        assert lock("import").acquire() is False
    assert lock("import").acquire() is True


# -- outboxes -------------------------------------------------------------------------------------


def test_a_message_is_stamped_with_the_defaults_of_an_outbox():
    with transaction.atomic():
        ids = [
            outbox("receipts").enqueue_tx({}),
            outbox_enqueue_tx("receipts", {}),
            outbox("receipts").enqueue({}),
            *outbox("receipts").enqueue_many([{}]),
        ]
    jobs = [get_job(id) for id in ids]
    assert {job.queue for job in jobs} == {"__alkstore_outbox:receipts"}
    assert {(j.visibility_timeout, j.max_attempts, j.backoff, j.expires_at) for j in jobs} == {
        (60, 5, 5, None)
    }


def test_a_delivered_message_is_gone():
    outbox("receipts").enqueue({"order": 1})
    delivered = []
    assert outbox("receipts").run_once("w", lambda job: delivered.append(job.payload)) is True
    assert outbox("receipts").run_once("w", delivered.append) is False
    assert delivered == [{"order": 1}]
    assert not Job.objects.exists()


def boom(job):
    raise RuntimeError("no route")


def test_a_delivery_that_raises_is_retried_on_the_curve():
    id = outbox("receipts").enqueue({})
    assert outbox("receipts").run_once("w", boom) is True
    row = get_job(id)
    assert (row.state, row.attempts, row.last_error) == ("scheduled", 1, "no route")
    assert 'raise RuntimeError("no route")' in row.last_traceback
    assert (row.due_at - ago()).total_seconds() == pytest.approx(5, abs=2)


def test_a_message_whose_attempts_are_used_up_is_dead_with_its_error():
    id = outbox("receipts").enqueue({}, max_attempts=1)
    assert outbox("receipts").run_once("w", boom) is True
    assert (get_job(id).state, get_job(id).last_error) == ("dead", "no route")
    assert outbox("receipts").run_once("w", boom) is False


def test_a_permanent_error_is_a_death_at_once():
    def refuse(job):
        raise PermanentError("no such address")

    id = outbox("receipts").enqueue({})
    assert outbox("receipts").run_once("w", refuse) is True
    assert (get_job(id).state, get_job(id).last_error) == ("dead", "no such address")
