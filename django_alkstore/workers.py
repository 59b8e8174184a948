"""The worker behind run_outbox and run_queue: claim in batches, run, record in batches, wait.

What it holds it never loses sight of: a claimed job that waits too long in here is handed back with
its attempt, an outcome that cannot be written is tried again, and a stop hands back at once what
has not started. A second thread, the keeper, sees to that while handlers run. A database that
fails is waited for. The limit: a handler that outlives its claim runs beside the next worker's,
unless it beats (``job.heartbeat()``, or ``heartbeat=True`` at its registration).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import Error, connections

from . import wakeups
from .exceptions import RetryLater
from .queues import ClaimedJob, Outcome, Queue, hand_over
from .shutdown import Stoppable
from .surroundings import Surroundings

logger = logging.getLogger(__name__)

KEEPER_SECONDS = 0.04  # how often the keeper looks while anything is held
RECORD_WITHIN = 0.05  # an outcome is written no later than this and one look of the keeper
QUICK_BATCH, SLOW_BATCH = 0.1, 0.5  # seconds within which a batch grows, beyond which it shrinks
LONGEST_OUTAGE_PAUSE = 5.0
LOOK_AGAIN_SECONDS = wakeups.NOTIFY_SECONDS
WATCH_SECONDS = 60.0
STOPPED = "the worker was stopped before the job ended"


@dataclass(frozen=True)
class Source:
    """A queue, the callable its jobs are handed to, and whether the worker beats for them."""

    queue: Queue
    call: Callable[[ClaimedJob], object]
    heartbeat: bool = False


@dataclass(frozen=True)
class Limits:
    """How a worker works; durations are in seconds. ``max_jobs``: end after so many."""

    poll_interval: float
    concurrency: int = 1
    batch_size: int = 128
    grace: float = 30.0
    max_jobs: int | None = None


def default_worker_id() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


class Item:
    """A job on its way through the worker, and when its claim needs a look."""

    __slots__ = ("job", "look_at", "source")

    def __init__(self, job: ClaimedJob, source: Source, claimed_at: float) -> None:
        self.job = job
        self.source = source
        self.look_at = claimed_at + job.visibility_timeout / 2

    def beat(self) -> None:
        """Hold the claim for its whole time again."""
        self.look_at = time.monotonic() + self.job.visibility_timeout / 3
        if not self.job.heartbeat():
            self.look_at = float("inf")
            logger.warning("%r still runs, but its claim has been taken back", self.job)


class Hold:
    """What a worker has claimed: waiting, running, or ended and not yet recorded."""

    def __init__(self, stop: Stoppable) -> None:
        self.stop = stop
        self.lock = threading.Lock()  # entered for each job: not through the condition's own
        self.changed = threading.Condition(self.lock)
        self.occupied = threading.Event()
        self.closed = threading.Event()
        self.waiting: deque[Item] = deque()
        self.running: dict[int, Item] = {}
        self.ended: list[Outcome] = []
        self.ended_since = 0.0

    def add(self, items: Sequence[Item]) -> None:
        """Claimed jobs, to be started in this order."""
        with self.changed:
            self.waiting.extend(items)
            self.occupied.set()
            self.changed.notify_all()

    def start(self) -> Item | None:
        """The next job to run; None if there is none, or none may start any more."""
        with self.lock:
            if self.stop.is_set() or not self.waiting:
                return None
            item = self.waiting.popleft()
            self.running[item.job.id] = item
            return item

    def start_when_there_is(self) -> Item | None:
        """The next job to run, waiting for it; None when the worker ends."""
        while not self.closed.is_set():
            if item := self.start():
                return item
            with self.changed:
                if not self.waiting or self.stop.is_set():
                    self.changed.wait(1.0)
        return None

    def end(self, item: Item, outcome: Outcome) -> None:
        """The job has run, and ``outcome`` waits to be recorded."""
        with self.lock:
            del self.running[item.job.id]
            if not self.ended:
                self.ended_since = time.monotonic()
            self.ended.append(outcome)
            if len(self.waiting) <= len(self.running):
                self.changed.notify_all()

    def take_ended(self) -> list[Outcome]:
        """The outcomes to record."""
        with self.lock:
            ended, self.ended = self.ended, []
            return ended

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Outcomes that could not be recorded, to be tried again."""
        with self.lock:
            self.ended = [*outcomes, *self.ended]

    def take_waiting(self, until: float = float("inf")) -> list[Item]:
        """The jobs whose claim needs a look by then; they will not be started."""
        with self.lock:
            taken = [item for item in self.waiting if item.look_at <= until]
            if taken:
                self.waiting = deque(item for item in self.waiting if item.look_at > until)
            return taken

    def beating(self, until: float) -> list[Item]:
        """The running jobs whose claim the worker is to renew by then."""
        with self.lock:
            running = list(self.running.values())
        return [item for item in running if item.source.heartbeat and item.look_at <= until]

    def is_empty(self) -> bool:
        return not (self.waiting or self.running or self.ended)

    def rest_if_empty(self) -> None:
        """Let the keeper sleep until something is added."""
        with self.lock:
            if self.is_empty() and not self.closed.is_set():
                self.occupied.clear()

    def close(self) -> None:
        """Let the threads end."""
        with self.changed:
            self.closed.set()
            self.occupied.set()
            self.changed.notify_all()


class Worker:
    """One worker over several queues: a batch of each in turn, priorities within each.

    ``watch`` is called now and then while it runs.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        worker_id: str,
        stop: Stoppable,
        limits: Limits,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self.sources = sources
        self.worker_id = worker_id
        self.stop = stop
        self.limits = limits
        self.watch = watch
        self.watch_at = 0.0
        self.engine = sources[0].queue.engine
        self.queues = {source.queue.name: source.queue for source in sources}
        self.waiter = wakeups.waiter(self.engine.alias, list(self.queues))
        self.hold = Hold(stop)
        self.batch = min(limits.concurrency, limits.batch_size)
        self.taken = 0
        self.has_news = False
        self.stopped_at: float | None = None
        # In a test's own transaction no second thread would see the rows, so there is none.
        self.alone = self.engine.connection.in_atomic_block

    # -- the ways to run ------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or until ``max_jobs`` have been taken."""
        outages = empty = 0
        with self._threads():
            while not self._is_finished():
                try:
                    self.engine.own_connection()
                    self._watch()
                    empty = 0 if self._pass() else empty + 1
                    if empty:
                        self._idle(empty)
                    outages = 0
                except Error as exc:
                    self._wait_for_database(outages, exc)
                    outages += 1

    def burst(self) -> None:
        """Work until no job is ready, stopped, or until ``max_jobs`` have been taken."""
        self.engine.own_connection()
        with self._threads():
            while not self._is_finished() and self._pass():
                self._finish_held()

    def _is_finished(self) -> bool:
        return self.stop.is_set() or self._left() <= 0

    def _left(self) -> float:
        most = self.limits.max_jobs
        return float("inf") if most is None else most - self.taken

    def _watch(self) -> None:
        if self.watch is not None and time.monotonic() >= self.watch_at:
            self.watch_at = time.monotonic() + WATCH_SECONDS
            self.watch()

    def _wait_for_database(self, outages: int, error: Error) -> None:
        logger.warning("the database failed; trying again", exc_info=error)
        connections.close_all()
        self.stop.wait(min(0.1 * 2 ** min(outages, 10), LONGEST_OUTAGE_PAUSE))

    # -- one pass -------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Claim and run a batch of each queue; whether there was any job."""
        worked = False
        for source in self.sources:
            if self._is_finished():
                break
            worked |= self._run_batch(source, int(min(self.batch, self._left())))
        return worked

    def _run_batch(self, source: Source, limit: int) -> bool:
        began = time.monotonic()
        jobs = source.queue.claim_batch(self.worker_id, limit)
        if not jobs:
            return False
        self.taken += len(jobs)
        self.hold.add([Item(job, source, began) for job in jobs])
        if self.limits.concurrency == 1:
            self._run_here()
        else:
            self._let_threads_run()
        self._record()
        self._fit_batch(len(jobs) == limit, time.monotonic() - began)
        return True

    def _run_here(self) -> None:
        with Surroundings() as surroundings:
            while item := self.hold.start():
                self._run(item, surroundings)
                if self.alone:
                    self._record()

    def _run(self, item: Item, surroundings: Surroundings) -> None:
        self.hold.end(item, hand_over(item.job, item.source.call, surroundings))

    def _let_threads_run(self) -> None:
        """Wait until the threads are about to run out of jobs."""
        with self.hold.changed:
            while len(self.hold.waiting) > len(self.hold.running) and not self.stop.is_set():
                self.hold.changed.wait(KEEPER_SECONDS)

    def _fit_batch(self, was_full: bool, seconds: float) -> None:
        """Claim as many at once as take a moment: few round trips, yet little held back."""
        if was_full and seconds < QUICK_BATCH:
            self.batch = min(2 * self.batch, self.limits.batch_size)
        elif seconds > SLOW_BATCH:
            fewest = min(self.limits.concurrency, self.limits.batch_size)
            self.batch = max(self.batch // 2, fewest)

    def _idle(self, empty: int) -> None:
        """Wait until a job is ready or due, looking at least once in each poll interval."""
        if empty > 1:  # it was ready, and yet not to be had: somebody holds the row
            self.stop.wait(min(0.01 * 2 ** min(empty, 10), LOOK_AGAIN_SECONDS))
        while not self.stop.is_set():
            self.waiter.arm()
            peek = self.engine.peek(list(self.queues))
            if peek.ready or peek.seconds == 0:
                return
            # What was enqueued just after an announcement has not been announced.
            longest = LOOK_AGAIN_SECONDS if self.has_news else self.limits.poll_interval
            seconds = longest if peek.seconds is None else min(longest, peek.seconds)
            self.has_news = self.waiter.wait(self.stop, seconds)

    # -- recording and handing back: by this thread or the keeper -------------------------------

    def _record(self) -> None:
        """Write down what has ended; what cannot be written is kept for the next time."""
        done: dict[str, list[Outcome]] = defaultdict(list)
        failed: list[Outcome] = []
        for outcome in self.hold.take_ended():
            (failed if outcome.error else done[outcome.job.queue]).append(outcome)
        try:
            while done:
                name = next(iter(done))
                self._ack(self.queues[name], [outcome.job for outcome in done[name]])
                del done[name]
            while failed:
                failed[0].record()
                del failed[0]
        except Error:
            self.hold.put_back([*failed, *(o for outcomes in done.values() for o in outcomes)])
            raise

    def _ack(self, queue: Queue, jobs: Sequence[ClaimedJob]) -> None:
        acked = queue.ack_batch(jobs)
        lost = sum(not job.settled for job in jobs) - acked
        if lost > 0:
            logger.warning("%d of %d acks of %r matched no claim of ours: taken back meanwhile",
                           lost, len(jobs), queue)  # fmt: skip

    def _hand_back(self, items: Sequence[Item]) -> None:
        """Give jobs that were not started back, with their attempt."""
        self.taken -= len(items)
        by_queue: dict[str, list[ClaimedJob]] = defaultdict(list)
        for item in items:
            by_queue[item.job.queue].append(item.job)
        for name, jobs in by_queue.items():
            released = self.queues[name].release_batch(jobs)
            logger.info("handed back %d of %d unstarted jobs of %r",
                        released, len(jobs), self.queues[name])  # fmt: skip

    def _finish_held(self) -> None:
        """Wait until everything that is held has ended and is recorded."""
        while not self.hold.is_empty():
            if self.stop.is_set():
                self._hand_back(self.hold.take_waiting())
            try:
                self._record()
            except Error as exc:
                if self.alone:
                    raise
                self._wait_for_database(0, exc)
            with self.hold.changed:
                if self.hold.waiting or self.hold.running:
                    self.hold.changed.wait(KEEPER_SECONDS)

    # -- the threads ----------------------------------------------------------------------------

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """The keeper and, with ``concurrency`` above 1, the threads that run handlers."""
        targets = [] if self.alone else [self._keep]
        if self.limits.concurrency > 1:
            targets += [self._run_in_thread] * self.limits.concurrency
        threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in threads:
            thread.start()
        try:
            yield
            self._finish_held()
        finally:
            self.hold.close()
            for thread in threads:
                thread.join()

    def _run_in_thread(self) -> None:
        try:
            with Surroundings() as surroundings:
                while item := self.hold.start_when_there_is():
                    self._run(item, surroundings)
        finally:
            connections.close_all()

    def _keep(self) -> None:
        """The keeper: what must happen while handlers run."""
        try:
            while not self.hold.closed.is_set():
                self.hold.occupied.wait()
                self.hold.closed.wait(KEEPER_SECONDS)
                try:
                    self._tend(time.monotonic())
                except Exception:
                    logger.warning("the keeper failed; trying again", exc_info=True)
                    connections.close_all()
                    self.hold.closed.wait(1.0)
                self.hold.rest_if_empty()
        finally:
            connections.close_all()

    def _tend(self, now: float) -> None:
        if self.stop.is_set():
            self._stopping(now)
        self.engine.own_connection()
        for item in self.hold.beating(now):
            item.beat()
        late = self.hold.take_waiting(float("inf") if self.stop.is_set() else now)
        if late:
            self._hand_back(late)
        if self.hold.ended and now - self.hold.ended_since >= RECORD_WITHIN:
            self._record()

    def _stopping(self, now: float) -> None:
        """After the grace: let other workers have what still runs here, and end the process."""
        if self.stopped_at is None:
            self.stopped_at = now
        if now - self.stopped_at < self.limits.grace:
            return
        for item in list(self.hold.running.values()):
            logger.error("%r still runs %.0f s after the stop", item.job, self.limits.grace)
            self.hold.put_back([Outcome(item.job, RetryLater(0, STOPPED))])
        try:
            self._record()
        finally:
            os._exit(0)  # the main thread may be inside that handler
