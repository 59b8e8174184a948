"""What people do to jobs and locks, beside workers that go on."""

import pytest

from django_alkstore import lock, queue
from django_alkstore.exceptions import InvalidOption
from django_alkstore.models import Job
from django_alkstore.operations import (
    CANCEL,
    REQUEUE,
    RUN_NOW,
    Selection,
    cancel,
    change_selected,
    release_lock,
    requeue,
    run_now,
    set_priority,
    windows,
)

from .factories import JobFactory, LockFactory, ago
from .processes import across_connections, held, locking

pytestmark = pytest.mark.django_db

VERBS = {
    "requeue": requeue,
    "cancel": cancel,
    "run now": run_now,
    "set priority": lambda ids: set_priority(ids, 7),
}
each_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def again(job):
    return Job.objects.get(pk=job.pk)


# -- one verb at a time ---------------------------------------------------------------------------


def test_a_requeued_job_runs_again_with_all_its_attempts():
    job = JobFactory(dead=True, run_at=ago(900))
    assert requeue([job.pk]).ids == [job.pk]
    (claimed,) = queue("reports").claim_batch("w", 5)
    assert (claimed.id, claimed.attempts) == (job.pk, 1)


def test_a_requeued_job_keeps_what_it_died_of():
    job = JobFactory(dead=True, last_error="no such order")
    requeue([job.pk])
    assert (again(job).last_error, again(job).finished_at) == ("no such order", None)


def test_a_requeued_job_goes_behind_those_that_wait():
    job, other = JobFactory(dead=True, run_at=ago(900)), JobFactory(run_at=ago(60))
    requeue([job.pk])
    assert [claimed.id for claimed in queue("reports").claim_batch("w", 5)] == [other.pk, job.pk]


def test_a_requeued_job_that_had_expired_does_not_die_of_it_again():
    job = JobFactory(dead=True, expires_at=ago(60))
    requeue([job.pk])
    assert queue("reports").claim("w").id == job.pk


def test_run_now_makes_a_waiting_job_ready():
    job = JobFactory(scheduled=True)
    assert run_now([job.pk]).ids == [job.pk]
    assert queue("reports").claim("w").id == job.pk


def test_run_now_keeps_the_expiry_of_a_job():
    job = JobFactory(scheduled=True, expires_at=ago(-120))
    run_now([job.pk])
    assert again(job).due_at == again(job).expires_at


@pytest.mark.parametrize("kind", [{}, {"scheduled": True}], ids=["ready", "scheduled"])
def test_a_cancelled_job_is_dead_and_says_why(kind):
    job = JobFactory(**kind)
    assert cancel([job.pk]).ids == [job.pk]
    assert (again(job).state, again(job).last_error) == ("dead", "cancelled")
    assert again(job).due_at is None


def test_a_larger_priority_lets_a_job_overtake():
    JobFactory(run_at=ago(60))
    job = JobFactory()
    set_priority([job.pk], 9)
    assert queue("reports").claim("w").id == job.pk


@pytest.mark.parametrize("priority", ["high", 1.5, 2**40, None])
def test_a_priority_that_is_no_int_is_refused_before_any_statement(priority, statements):
    with pytest.raises(InvalidOption, match="expected priority to be"):
        set_priority([1], priority)
    assert len(statements) == 0


@pytest.mark.parametrize("ids", [["1"], [True], [-1], [2**63]])
def test_an_id_that_is_none_is_refused_before_any_statement(ids, statements):
    with pytest.raises(InvalidOption, match="expected each id to be"):
        requeue(ids)
    assert len(statements) == 0


@each_verb
def test_a_running_job_is_left_alone_and_the_answer_says_so(verb):
    job = JobFactory(running=True)
    changed = verb([job.pk])
    assert (changed.ids, changed.left) == ([], {job.pk: "running"})
    assert (again(job).state, again(job).claim_token) == ("running", job.claim_token)


@each_verb
def test_a_job_that_is_not_there_is_said_to_be_gone(verb):
    assert verb([10**9]).left == {10**9: "gone"}


@each_verb
def test_a_done_job_is_never_touched(verb):
    job = JobFactory(done=True)
    assert verb([job.pk]).left == {job.pk: "done"}


def test_each_of_many_ids_gets_its_own_answer():
    dead, ready, running = JobFactory(dead=True), JobFactory(), JobFactory(running=True)
    changed = requeue([running.pk, dead.pk, ready.pk, dead.pk])
    assert changed.ids == [dead.pk]
    assert changed.left == {running.pk: "running", ready.pk: "ready"}


def test_more_ids_than_a_statement_takes_are_changed_all():
    ids = [job.pk for job in Job.objects.bulk_create(JobFactory.build_batch(1_201, dead=True))]
    assert len(requeue([job.pk for job in Job.objects.all()]).ids) == len(ids)


@across_connections
def test_a_job_that_a_worker_took_in_between_stays_the_workers():
    job = JobFactory(scheduled=True, run_at=ago(1), due_at=ago(1))
    claimed = queue("reports").claim("w")
    assert cancel([job.pk]).left == {job.pk: "running"}
    assert claimed.ack()


@across_connections
def test_a_row_that_somebody_holds_is_not_waited_for(only_on):
    only_on("postgresql", "mysql")
    job, free = JobFactory(), JobFactory()

    with held(lambda: locking(job)):
        changed = cancel([job.pk, free.pk])
    assert (changed.ids, changed.left) == ([free.pk], {job.pk: "ready"})


# -- many -----------------------------------------------------------------------------------------


def changed_by(verb, **selection):
    found = [changed for _, changed in change_selected(verb, Selection(**selection))]
    return sorted(id for changed in found for id in changed.ids)


def test_a_selection_is_all_that_it_names():
    mine = JobFactory(dead=True, schedule="nightly", created_at=ago(900))
    JobFactory(dead=True, queue="mails", schedule="nightly", created_at=ago(900))
    JobFactory(dead=True, schedule="hourly", created_at=ago(900))
    JobFactory(dead=True, schedule="nightly")
    JobFactory(schedule="nightly", created_at=ago(900))
    assert changed_by(REQUEUE, queue="reports", schedule="nightly", older_than=600) == [mine.pk]


def test_a_selection_without_a_word_is_every_job_of_the_verbs_states():
    ids = [JobFactory().pk, JobFactory(scheduled=True, queue="mails").pk]
    JobFactory(running=True)
    assert changed_by(CANCEL) == ids


def test_a_selection_can_name_one_of_the_verbs_states():
    waits = JobFactory(scheduled=True)
    JobFactory()
    assert changed_by(CANCEL, state="scheduled") == [waits.pk]


def test_a_state_that_is_not_the_verbs_is_refused():
    with pytest.raises(InvalidOption, match="expected state to be one of scheduled"):
        list(windows(RUN_NOW, Selection(state="ready")))


def test_what_comes_after_the_start_is_not_touched():
    JobFactory.create_batch(2, dead=True)
    steps = change_selected(REQUEUE, Selection())
    next(steps)
    late = JobFactory(dead=True)
    list(steps)
    assert again(late).state == "dead"


def test_a_walk_is_a_bounded_step_at_a_time(monkeypatch):
    monkeypatch.setattr("django_alkstore.operations.WINDOW_ROWS", 2)
    JobFactory.create_batch(5, dead=True)
    assert [len(window.ids) for window in windows(REQUEUE, Selection())] == [2, 2, 1]


# -- locks ----------------------------------------------------------------------------------------


def test_a_lock_that_is_released_by_hand_can_be_taken():
    row = LockFactory(name="import")
    assert not lock("import").acquire()
    assert release_lock("import", row.owner, row.token)
    assert lock("import").acquire()


def test_a_lock_that_changed_hands_is_not_released():
    row = LockFactory(name="import", token=5)
    assert not release_lock("import", row.owner, 4)
    assert not release_lock("import", "another", 5)
