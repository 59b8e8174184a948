"""The measures: each yields rows of (what, ours, the bare driver's, unit)."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction

from django_alkstore import outbox
from django_alkstore.models import Job
from testproject.shop.models import Order
from tests.piles import pile
from tests.processes import environment

from .bare import QUEUE, Bare

BOX = outbox("bench")
ROUNDS = 3


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``bare`` is None where there is nothing to compare with."""

    what: str
    ours: float
    bare: float | None
    unit: str

    @property
    def ratio(self):
        return None if self.bare is None else self.ours / self.bare


def side_by_side(what, count, ours, bare, clean=None):
    """Run both in turn, a few rounds; the best rate of each, which noise can only lower."""
    best = [0.0, 0.0]
    for _ in range(ROUNDS):
        for index, run in enumerate((ours, bare)):
            if clean:
                clean()
            begun = time.perf_counter()
            run(count)
            best[index] = max(best[index], count / (time.perf_counter() - begun))
    return Figure(what, *best, "/s")


def empty():
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_alkstore_job")


def fill(count):
    empty()
    for start in range(0, count, 1000):
        BOX.enqueue_many([{"order": n} for n in range(start, min(start + 1000, count))])


def enqueueing(size):
    bare = Bare()

    def one(count):
        for n in range(count):
            BOX.enqueue({"order": n})

    def bare_one(count):
        for n in range(count):
            bare.insert({"order": n})

    yield side_by_side("enqueue, one per transaction", size.singles, one, bare_one, empty)

    def order_and_message(count):
        for n in range(count):
            with transaction.atomic():
                Order.objects.create(email="ada@example.com", item="a book")
                BOX.enqueue_tx({"order": n})

    def order_alone(count):
        for _ in range(count):
            with transaction.atomic():
                Order.objects.create(email="ada@example.com", item="a book")

    yield side_by_side(
        "enqueue_tx beside an ORM insert / without", size.singles, order_and_message, order_alone
    )

    def many(count):
        for start in range(0, count, 1000):
            BOX.enqueue_many([{"order": n} for n in range(start, start + 1000)])

    def bare_many(count):
        for start in range(0, count, 1000):
            bare.insert_many([{"order": n} for n in range(start, start + 1000)])

    yield side_by_side("enqueue_many, 1,000 a call", size.many, many, bare_many, empty)


def claiming(size):
    bare = Bare()

    def one(count):
        for _ in range(count):
            BOX.queue.claim("bench").ack()

    def bare_one(count):
        for _ in range(count):
            bare.delete(bare.claim(1))

    def refill():
        fill(size.singles)

    yield side_by_side("claim and ack, one by one", size.singles, one, bare_one, refill)


def draining(size):
    best_bare = 0.0
    for _ in range(ROUNDS):
        fill(size.drain)
        begun = time.perf_counter()
        assert Bare().drain(128, lambda payload: None) == size.drain
        best_bare = max(best_bare, size.drain / (time.perf_counter() - begun))
    one = max(_drain_by(1, size.drain) for _ in range(ROUNDS))
    two = max(_drain_by(2, size.drain) for _ in range(ROUNDS))
    yield Figure("drain, one process, no-op delivery", one, best_bare, "/s")
    yield Figure("drain, two processes / one", two, one, "/s")


def _drain_by(processes, count):
    fill(count)
    with children("drain", processes) as running:
        tell(running)
        reports = [report(child) for child in running]
    assert sum(r["count"] for r in reports) == count, "every job once"
    worked = [r for r in reports if r["count"]]
    return count / (max(r["ended"] for r in worked) - min(r["begun"] for r in worked))


def latency(size):
    empty()
    committed = {}
    with children("starts", 1) as (child,):
        tell([child])
        time.sleep(1)
        for n in range(size.samples):
            BOX.enqueue(str(n))
            committed[str(n)] = time.time()
            time.sleep(0.15 + 0.001 * (n % 37))
        wait_until_empty()
        tell([child])
        starts = report(child)["starts"]
    late = sorted(1000 * (starts[n] - at) for n, at in committed.items())
    for name, value in (
        ("p50", late[len(late) // 2]),
        ("p95", late[int(len(late) * 0.95)]),
        ("max", late[-1]),
    ):
        yield Figure(f"commit to handler start, idle worker, {name}", value, None, "ms")


def producing(size):
    empty()

    def produce(count):
        begun = time.perf_counter()
        for n in range(count):
            BOX.enqueue(str(n))
        return count / (time.perf_counter() - begun)

    alone = max(produce(size.singles) for _ in range(ROUNDS))
    empty()
    with children("starts", 1) as (child,):
        tell([child])
        time.sleep(1)
        beside = max(produce(size.singles) for _ in range(ROUNDS))
        wait_until_empty()
        tell([child])
        report(child)
    yield Figure("a producer while a worker drains / alone", beside, alone, "/s")


def backlog(size):
    bare = Bare()
    smallest = None
    for waiting in size.backlogs:
        empty()
        pile("ready", waiting, queue=QUEUE)
        rate, bare_rate = _claim_rates(bare)
        yield Figure(f"next 1,000 claims, {waiting:,} waiting", rate, bare_rate, "/s")
        smallest = smallest or rate
    if len(size.backlogs) > 1:
        yield Figure("  the last of these / the first", rate, smallest, "/s")
    empty()
    pile("ready", size.backlogs[0], queue=QUEUE)
    pile("scheduled", size.delayed, queue=QUEUE, priority=100)
    pile("done", size.finished, queue=QUEUE)
    rate, bare_rate = _claim_rates(bare)
    what = f"the same, {size.delayed:,} delayed and {size.finished:,} finished"
    yield Figure(what, rate, bare_rate, "/s")
    yield Figure("  this / the first", rate, smallest, "/s")
    empty()


def _claim_rates(bare):
    """Rates of 1,000 single claims: ours, and the bare driver's, each a few rounds."""
    claims = (lambda: BOX.queue.claim("bench"), lambda: bare.claim(1))
    best = [0.0, 0.0]
    for _ in range(ROUNDS):
        for index, claim in enumerate(claims):
            begun = time.perf_counter()
            for _ in range(1000):
                assert claim()
            best[index] = max(best[index], 1000 / (time.perf_counter() - begun))
            give_back()
    return best


def give_back():
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_alkstore_job SET state = 'ready', due_at = NULL WHERE state = 'running'"
        )


def idle_cost(size):
    empty()
    with children("idle", 1) as (child,):
        tell([child])
        time.sleep(size.idle)
        tell([child])
        seen = report(child)
    yield Figure("idle worker, statements", seen["statements"] / seen["seconds"], None, "/s")
    yield Figure("idle worker, CPU", 60 * seen["cpu"] / seen["seconds"], None, "s/min")


MEASURES = [enqueueing, claiming, draining, latency, producing, backlog, idle_cost]


def wait_until_empty():
    deadline = time.monotonic() + 60
    while Job.objects.exists():
        assert time.monotonic() < deadline, "the worker leaves jobs behind"
        time.sleep(0.02)


@contextmanager
def children(kind, count):
    """Worker processes that are ready to begin."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.child", kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
        )
        for _ in range(count)
    ]  # fmt: skip
    try:
        for child in running:
            assert child.stdout.readline() == "ready\n"
        yield running
    finally:
        for child in running:
            child.kill()
            child.communicate()


def tell(running):
    for child in running:
        child.stdin.write("\n")
        child.stdin.flush()


def report(child):
    return json.loads(child.stdout.readline())


def claims_of(child):
    """What the claims took that the child has made since it was last asked, in words."""
    child.stdin.write("more\n")
    child.stdin.flush()
    taken = report(child)
    return f"{len(taken):>6,} claims {spread(taken)}"


def spread(milliseconds):
    """p50, p95 and the most of some figures."""
    at = sorted(milliseconds) or [0.0]
    p50, p95 = at[len(at) // 2], at[int(len(at) * 0.95)]
    return f"p50 {p50:>7.2f}  p95 {p95:>7.2f}  max {at[-1]:>7.2f} ms"
