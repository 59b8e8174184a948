"""Small directed situations, each of which would show one planted fault.

Every one ends with all jobs handed out and done, so that without a fault no rule is broken.
"""

import contextlib
import os
import time
from datetime import timedelta

from django.db import DatabaseError, OperationalError, transaction
from django.db.models import F

from django_alkstore import LeadershipLost, lock, models, outbox, queue, schedule, sql
from django_alkstore.queues import process
from django_alkstore.scheduler import Scheduler
from testproject.shop.models import Order

from ..pauses import Point, Stopped
from ..processes import in_threads
from .history import journal
from .parties.acts import receive

HOUR = timedelta(hours=1)
ROUNDS = 8
LIVE = ["ready", "scheduled", "running"]


# -- parts ----------------------------------------------------------------------------------------


def place(mark="it", act="fine", target=None, **options):
    """Commit an order and its job."""
    with transaction.atomic():
        Order.objects.create(email="ada@example.com", item=mark)
        enqueue(mark, act, target, **options)
    journal().write("committed", marks=[mark])


def enqueue(mark, act="fine", target=None, **options):
    target, since = target or queue("chores"), time.monotonic()
    id = target.enqueue_tx({"mark": mark, "act": act}, backoff=0, **options)
    journal().write("enqueued", id=id, mark=mark, since=since, **options)


def claim(worker="a"):
    return queue("chores").claim(worker)


def let_lapse(job):
    """The claim lapses now."""
    journal().write("let lapse", id=job.id)
    models.Job.objects.filter(pk=job.id, state="running").update(due_at=sql.engine().clock() - HOUR)


def hand_out_the_rest():
    """Claims of everybody lapse, delays end, and a worker does all that is left; not for ever."""
    for _ in range(ROUNDS):
        if not models.Job.objects.filter(state__in=LIVE).exists():
            return
        late = models.Job.objects.filter(state__in=["scheduled", "running"])
        for id in late.values_list("id", flat=True):
            journal().write("let lapse", id=id)
        late.update(due_at=sql.engine().clock() - HOUR)
        for name in ("chores", "reports"):
            for job in queue(name).claim_batch("the last", 100):
                process(job, receive)


# -- one owner ------------------------------------------------------------------------------------


def stale(verb):
    """A claim lapses, another worker takes the job, and then the first one comes back."""

    def scenario():
        place()
        first = claim()
        let_lapse(first)
        second = claim("b")
        verb(first)
        process(second, receive)
        hand_out_the_rest()

    return scenario


stale_ack = stale(lambda job: job.ack())
stale_keep = stale(lambda job: sql.engine().keep(job.claim_token, [job.id]))
stale_fail = stale(lambda job: job.fail("too late"))
stale_retry = stale(lambda job: job.retry(delay=0))
stale_late_retry = stale(lambda job: job.retry(delay=60))
stale_release = stale(lambda job: job.release())
stale_heartbeat = stale(lambda job: job.heartbeat())


def two_claim_at_once():
    place()
    with Stopped(claim, "before", text="state = 'running', attempts = attempts + 1") as first:
        second = claim("b")
    for job in (first.result, second):
        if job is not None:
            process(job, receive)


def another_claims():
    place()
    first = claim()
    claim("b")
    process(first, receive)
    hand_out_the_rest()


def another_claims_after_a_beat():
    place()
    first = claim()
    first.heartbeat(60)
    claim("b")
    process(first, receive)
    hand_out_the_rest()


def it_is_retried_later():
    place()
    claim().retry("again", delay=60)
    hand_out_the_rest()


def it_is_delayed():
    place(delay=60)
    claim()
    hand_out_the_rest()


def one_job_is_done():
    place()
    process(claim(), receive)
    hand_out_the_rest()


# -- attempts -------------------------------------------------------------------------------------


def claims_lapse_in_turn():
    place(max_attempts=2)
    for _ in range(4):
        if job := claim():
            let_lapse(job)


def it_is_retried_in_turn():
    place(max_attempts=2)
    for _ in range(4):
        if job := claim():
            job.retry("again", delay=0)
    hand_out_the_rest()


# -- nothing is lost, nothing leaks ---------------------------------------------------------------


def a_delivery_fails_once():
    place(act="fail_once")
    hand_out_the_rest()


def another_hook_fails():
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        transaction.on_commit(lambda: 1 / 0)
        Order.objects.create(email="ada@example.com", item="it")
        enqueue("it")
    hand_out_the_rest()


def it_is_given_up():
    place()
    claim().fail("no such month")


def it_rolls_back():
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        enqueue("it")
        Order.objects.create(email="ada@example.com", item=f"{1 / 0}")
    hand_out_the_rest()


def a_transaction_is_left_open():
    place(act="leave_a_transaction_open", target=outbox("letters"))
    in_threads(lambda: outbox("letters").run_once("a", receive))


def a_delivery_exits():
    place(act="leave", target=outbox("letters"), max_attempts=1)
    with ends_as_a_process():
        outbox("letters").run_once("a", receive)


@contextlib.contextmanager
def ends_as_a_process():
    """Write down what the supervisor would of a worker that is left by SystemExit."""
    try:
        yield
    except SystemExit as exc:
        journal().write("ended", name="worker", process=os.getpid(), code=exc.code, told=[])


# -- boundaries -----------------------------------------------------------------------------------


def register(overdue, name="nightly"):
    row = schedule(name, "@every 1m", "reports", {"mark": None, "act": "fine"})
    row.next_fire_at = sql.engine().clock() - overdue
    models.Schedule.objects.filter(name=name).update(next_fire_at=row.next_fire_at)
    journal().write("scheduled", schedule=row.name, first=str(row.next_fire_at))


def a_tick_is_cut_off():
    """The server fails as the ledger is written, and another scheduler goes on."""
    register(overdue=timedelta(seconds=90))
    ledger = Point(fail, "before", text="INTO " + quoted("django_alkstore_fire"))
    with ledger.here(), contextlib.suppress(DatabaseError):
        Scheduler().tick()
    Scheduler().tick()
    hand_out_the_rest()


def quoted(table):
    return sql.engine().connection.ops.quote_name(table)


def fail():
    raise OperationalError("the server is gone")


def a_schedule_is_set_back():
    register(overdue=timedelta(seconds=90))
    Scheduler().tick()
    models.Schedule.objects.update(next_fire_at=F("next_fire_at") - timedelta(minutes=2))
    Scheduler().tick()
    hand_out_the_rest()


def a_schedule_is_far_behind():
    register(overdue=timedelta(hours=2))
    Scheduler().tick()
    hand_out_the_rest()


def led_by_two_in_turn():
    """The lease of the first has lapsed before it fired anything, and the second fires."""
    register(overdue=timedelta(seconds=90))
    first, second = Scheduler(), Scheduler()
    first.lead()
    let_lease_lapse(first.lease.name)
    with contextlib.suppress(LeadershipLost):
        second.lead()
        second.pass_once()
    return first


def a_leader_dies():
    led_by_two_in_turn()
    journal().write("calm", now=sql.engine().clock())
    hand_out_the_rest()


def a_replaced_leader_goes_on():
    first = led_by_two_in_turn()
    register(overdue=timedelta(seconds=90), name="weekly")
    with contextlib.suppress(LeadershipLost):
        first.pass_once()
    Scheduler().tick()
    hand_out_the_rest()


# -- locks ----------------------------------------------------------------------------------------


def taken_over():
    """A lock, held by two in turn: the first one's lease has lapsed."""
    first, second = lock("till"), lock("till")
    assert first.acquire()
    let_lease_lapse("till")
    assert second.acquire()
    return first, second


def let_lease_lapse(name):
    journal().write("let lapse", name=name)
    models.Lock.objects.update(expires_at=sql.engine().clock() - HOUR)


def a_stale_holder_renews():
    first, second = taken_over()
    first.renew()
    second.release()


def a_stale_holder_releases():
    first, second = taken_over()
    first.release()
    second.release()


def another_takes_the_lock():
    first, second = lock("till"), lock("till")
    first.acquire()
    second.acquire()
    first.release()


def a_lock_is_taken_in_turn():
    for _ in range(3):
        assert lock("till").acquire()
        let_lease_lapse("till")


def a_holder_dies():
    lock("till", ttl=1).acquire()


def a_holder_renews_and_dies():
    till = lock("till", ttl=1)
    till.acquire()
    till.renew()
