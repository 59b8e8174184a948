"""The worker behind run_outbox and run_queue: claim in batches, run, record in batches, wait.

What it holds it never loses sight of: a claimed job that waits too long in here is handed back with
its attempt, an outcome that cannot be written is tried again, and a stop hands back at once what
has not started. A second thread, the keeper, sees to that while handlers run. A database that
fails is waited for. The limit: a handler that outlives its claim runs beside the next worker's,
unless it beats (``job.heartbeat()``, or ``heartbeat=True`` at its registration). On SQLite nobody
can beat while a handler holds the one write lock: keep transactions there shorter than the claim.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import DataError, Error, IntegrityError

from . import sql, wakeups
from .counts import Tally
from .holds import NEVER, Hold, Item, Source
from .queues import SWEEP_SECONDS, ClaimedJob, Outcome, Queue, hand_over, log_keys
from .shutdown import Stoppable
from .surroundings import Surroundings, drop_connections, forget_queries

logger = logging.getLogger(__name__)

KEEPER_SECONDS = 0.04  # how often the keeper looks while anything is held
RECORD_WITHIN = 0.05  # an outcome is written no later than this and one look of the keeper
QUICK_BATCH, SLOW_BATCH = 0.1, 0.5  # seconds within which a batch grows, beyond which it shrinks
LONGEST_OUTAGE_PAUSE = 5.0
LAST_SECONDS = 5.0  # for a thread to end, or for a last write
# After news: what was enqueued just after an announcement, and committed a little later still, has
# not been announced.
LOOK_AGAIN_SECONDS, LOOKS_AGAIN = wakeups.NOTIFY_SECONDS, 2
WATCH_SECONDS = 60.0


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
        self.log_keys = {"worker_id": worker_id, "alias": self.engine.alias}
        self.tally = Tally()
        for queue in self.queues.values():
            queue.tally = self.tally
        self.claiming = threading.Lock()  # from the claim until the hold knows of it
        self.writing = threading.Lock()  # from the look at what is to be written until it is
        self.looks = 0
        self.stopped_at: float | None = None
        # In a test's own transaction no second thread would see the rows, so there is none.
        self.alone = self.engine.connection.in_atomic_block
        self.threads = 1 if self.alone else limits.concurrency
        self.fewest = min(self.threads, limits.batch_size)
        self.batches = dict.fromkeys(self.queues, self.fewest)

    # -- the ways to run ------------------------------------------------------------------------

    def run(self) -> None:
        """Work until stopped, or until ``max_jobs`` have been taken."""
        outages = empty = 0
        for queue in self.queues.values():
            queue.looked_at = float("-inf")
        with self._threads():
            while not self._is_finished():
                try:
                    self._watch()
                    empty = 0 if self._pass() else empty + 1
                    if empty:
                        self._idle(empty)
                    outages = 0
                except Error as exc:
                    if self.alone:
                        raise
                    self._note_outage(exc)
                    self.stop.wait(_pause(outages))
                    outages += 1

    def burst(self) -> None:
        """Work until no job is ready, stopped, or until ``max_jobs`` have been taken."""
        with self._threads():
            while not self._is_finished():
                held = not self.hold.is_empty()
                if not self._pass():
                    if not held:
                        return
                    self._finish_held()  # what fails may be ready again

    def _is_finished(self) -> bool:
        return self.stop.is_set() or self._left() <= 0

    def _left(self) -> float:
        most = self.limits.max_jobs
        return NEVER if most is None else most - self.hold.taken()

    def _watch(self) -> None:
        forget_queries()
        if self.watch is not None and time.monotonic() >= self.watch_at:
            self.watch_at = time.monotonic() + WATCH_SECONDS
            self.engine.own_connection()
            self.watch()

    def _note_outage(self, error: Error) -> None:
        logger.warning("the database failed; trying again", exc_info=error,
                       extra=self.log_keys)  # fmt: skip
        drop_connections()

    # -- one pass -------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Claim and run a batch of each queue; whether there was any job."""
        worked = False
        for source in self.sources:
            room = self._wait_for_room(source)
            if self._is_finished():
                break
            worked |= self._run_batch(source, int(min(room, self._left())))
        return worked

    def _run_batch(self, source: Source, limit: int) -> bool:
        items = self._claim(source, limit)
        if not items:
            return False
        began = time.monotonic()
        if self.threads == 1:
            self._run_here()
        else:
            self._wait_for_room(source)
        self._write()
        took, was_full = time.monotonic() - began, len(items) == limit
        batch = fitting_batch(self.batches[source.queue.name], was_full, took)
        self.batches[source.queue.name] = max(self.fewest, min(batch, self.limits.batch_size))
        return True

    def _claim(self, source: Source, limit: int) -> list[Item]:
        with self.claiming:
            self.engine.own_connection()
            began = time.monotonic()
            jobs = source.queue.claim_batch(self.worker_id, limit)
            items = [Item(job, source, began) for job in jobs]
            if items:
                self.hold.add(items)
        return items

    def _run_here(self) -> None:
        while item := self.hold.start():
            self._run(item, self.surroundings)
            if self.alone:
                self._write()

    def _run(self, item: Item, surroundings: Surroundings) -> None:
        self.hold.end(item, hand_over(item.job, item.source.call, surroundings))

    def _wait_for_room(self, source: Source) -> int:
        """How many jobs to claim, once there is a thread for them; 0 when stopped.

        A few more than there are threads only of a queue whose jobs are quick: behind a slow one
        they would wait here while other workers are idle.
        """
        batch = self.batches[source.queue.name]
        if self.threads == 1:
            return batch
        with self.hold.lock:
            while not self.stop.is_set():
                waiting = len(self.hold.waiting)
                if batch > self.threads and waiting <= self.threads:
                    return batch
                if (free := self.threads - waiting - len(self.hold.running)) > 0:
                    return min(batch, free)
                self.hold.eased.wait(KEEPER_SECONDS)
        return 0

    def _idle(self, empty: int) -> None:
        """Wait until a job is ready or due, looking at least once in each poll interval."""
        if empty > 1:  # it was ready, and yet not to be had: somebody holds the row
            self.stop.wait(min(0.01 * 2 ** min(empty, 10), LOOK_AGAIN_SECONDS))
        # What lost its due_at shows in no look; the repair that finds it is part of a claim.
        until = time.monotonic() + WATCH_SECONDS
        look = self._peek_lately
        while not self.stop.is_set() and (left := until - time.monotonic()) > 0:
            if self.waiter.arm():
                self.looks = LOOKS_AGAIN
            peek = look()
            look = self._peek
            if peek.ready or peek.seconds == 0:
                return
            longest = LOOK_AGAIN_SECONDS if self.looks else self.limits.poll_interval
            self.looks = max(0, self.looks - 1)
            due = NEVER if peek.seconds is None else peek.seconds
            if self.waiter.wait(self.stop, min(longest, due, left)):
                self.looks = LOOKS_AGAIN
                if self.waiter.knows_queues and empty == 1:
                    return  # saves a look; not for one that found the last news taken by another

    def _peek(self) -> sql.Peek:
        return self.engine.peek(list(self.queues))

    def _peek_lately(self) -> sql.Peek:
        """For a worker that has just looked, and will soon again."""
        since = [queue.lately() for queue in self.queues.values()]
        if None in since:
            return self._peek()
        return self.engine.peek_lately(list(self.queues), max(since), SWEEP_SECONDS)

    # -- recording and giving back: by this thread or the keeper --------------------------------

    def _write(self) -> None:
        """Record what has ended, and give back what will not start.

        What cannot be written stays in the hold for the next time.
        """
        with self.writing:
            self.engine.own_connection()
            self._record()
            self._give_back()
        forget_queries()

    def _record(self) -> None:
        done: dict[str, dict[Item, ClaimedJob]] = defaultdict(dict)
        failed: list[tuple[Item, Outcome]] = []
        for item, outcome in self.hold.to_record():
            if outcome.error is None:
                done[item.job.queue][item] = item.job
            else:
                failed.append((item, outcome))
        for name, jobs in done.items():
            self._ack(self.queues[name], list(jobs.values()))
            self.hold.recorded(jobs)
        for item, outcome in failed:
            self._record_failure(outcome)
            self.hold.recorded([item])

    def _ack(self, queue: Queue, jobs: Sequence[ClaimedJob]) -> None:
        acked = queue.ack_batch(jobs)
        lost = sum(not job.settled for job in jobs) - acked
        if lost > 0:
            logger.warning("%d of %d acks of %r matched no claim of ours: taken back meanwhile",
                           lost, len(jobs), queue,
                           extra={"queue": queue.name, "count": lost})  # fmt: skip
            queue.note_lost([job for job in jobs if not job.settled], lost)

    def _record_failure(self, outcome: Outcome) -> None:
        try:
            outcome.record()
        except Exception as exc:
            if isinstance(exc, Error) and not isinstance(exc, (DataError, IntegrityError)):
                raise
            # No outcome may stand in the way of the others for ever; this one's claim lapses.
            logger.exception("what came of %r cannot be stored", outcome.job,
                             extra=log_keys(outcome.job))  # fmt: skip

    def _give_back(self) -> None:
        """Give jobs that were not started back, with their attempt."""
        unstarted = self.hold.to_give_back()
        by_queue: dict[str, list[ClaimedJob]] = defaultdict(list)
        for item in unstarted:
            by_queue[item.job.queue].append(item.job)
        for name, jobs in by_queue.items():
            released = self.queues[name].release_batch(jobs)
            logger.info("gave back %d of %d unstarted jobs of %r",
                        released, len(jobs), self.queues[name],
                        extra={**self.log_keys, "queue": name, "count": released})  # fmt: skip
        self.hold.given_back(len(unstarted))

    def _finish_held(self) -> None:
        """Wait until everything that is held has ended and is recorded."""
        outages = 0
        while not self.hold.is_empty():
            if self.stop.is_set():
                self.hold.set_aside()
            try:
                self._write()
                outages = 0
            except Error as exc:
                if self.alone:
                    raise
                self._note_outage(exc)
                self.hold.closed.wait(_pause(outages))  # the stop would not wait any more
                outages += 1
            with self.hold.lock:
                if self.hold.waiting or self.hold.running:
                    self.hold.eased.wait(KEEPER_SECONDS)

    # -- the threads ----------------------------------------------------------------------------

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """The keeper and, with ``concurrency`` above 1, the threads that run handlers."""
        targets = [] if self.alone else [self._keep]
        targets += [self._run_in_thread] * (self.threads if self.threads > 1 else 0)
        threads = [threading.Thread(target=target, daemon=True) for target in targets]
        self.surroundings = Surroundings(self.engine.alias)  # of this thread
        try:
            for thread in threads:
                thread.start()
            yield
            self._finish_held()
        finally:
            self.hold.close()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(LAST_SECONDS)
            self._leave()
            self._flush()

    def _leave(self) -> None:
        """After an error that ends the worker: keep other workers waiting for as little as can be."""
        self.hold.set_aside()
        try:
            if self.hold.needs_writing(NEVER):
                self._write()
        except Exception:
            logger.warning("the jobs held here are left to their claims", exc_info=True,
                           extra=self.log_keys)  # fmt: skip

    def _flush(self) -> None:
        """Write down what has been counted; statistics may fail nothing."""
        try:
            self.engine.own_connection()
            self.tally.flush(self.engine)
        except Exception:
            logger.warning("what was counted cannot be stored; trying again", exc_info=True,
                           extra=self.log_keys)  # fmt: skip

    def _run_in_thread(self) -> None:
        surroundings = Surroundings(self.engine.alias)
        try:
            while item := self.hold.start_when_there_is():
                self._run(item, surroundings)
        finally:
            drop_connections()

    def _keep(self) -> None:
        """The keeper: what must happen while handlers run."""
        while not self.hold.closed.is_set():
            self.hold.occupied.wait()
            self.hold.closed.wait(KEEPER_SECONDS)
            try:
                self._tend(time.monotonic())
            except Exception:
                logger.warning("the keeper failed; trying again", exc_info=True,
                               extra=self.log_keys)  # fmt: skip
                drop_connections()
                self.hold.closed.wait(1.0)
            if self.tally.is_empty:
                self.hold.rest_if_empty()
        drop_connections()

    def _tend(self, now: float) -> None:
        if self.stop.is_set():
            self._stopping(now)
        self.hold.set_aside(NEVER if self.stop.is_set() else now)
        if self.hold.needs_writing(now - RECORD_WITHIN):
            self._write()
        self._beat(now)
        if self.tally.is_due(now):
            self._flush()
        forget_queries()

    def _beat(self, now: float) -> None:
        for item in self.hold.beating(now):
            self.engine.own_connection()
            try:
                held = item.beat()
            except Error:
                if not self.engine.connection.is_usable():
                    raise
                logger.warning("no heartbeat for %r; trying again", item.job, exc_info=True,
                               extra=log_keys(item.job))  # fmt: skip
                item.beat_at = time.monotonic() + 1.0
                continue
            if not held and item in self.hold.running and not item.job.settled:
                logger.warning("%r still runs, but its claim has been taken back", item.job,
                               extra=log_keys(item.job))  # fmt: skip

    def _stopping(self, now: float) -> None:
        """After the grace: let other workers have what still runs here, and end the process."""
        if self.stopped_at is None:
            self.stopped_at = now
        if now - self.stopped_at < self.limits.grace:
            return
        # The main thread may be inside a handler, which may hold the rows that are to be written.
        end = threading.Timer(LAST_SECONDS, os._exit, [0])
        end.daemon = True
        end.start()
        with self.claiming:
            for item in self.hold.abandon_running():
                logger.error("%r still runs %.0f s after the stop", item.job, self.limits.grace,
                             extra=log_keys(item.job))  # fmt: skip
            self.hold.set_aside()
            try:
                self._write()
            finally:
                os._exit(0)


def fitting_batch(batch: int, was_full: bool, seconds: float) -> int:
    """How many to claim after a batch that took so long: what runs in a moment.

    That makes few round trips, and keeps little from other workers and other queues.
    """
    if was_full and seconds < QUICK_BATCH:
        return 2 * batch
    if seconds > SLOW_BATCH:
        return max(1, int(batch * QUICK_BATCH / seconds))
    return batch


def _pause(outages: int) -> float:
    return min(0.1 * 2 ** min(outages, 10), LONGEST_OUTAGE_PAUSE)
