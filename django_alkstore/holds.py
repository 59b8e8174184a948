"""What a worker holds: each claimed job from its claim until it is written down what became of it.

Threads that run handlers, the keeper and the claiming thread meet here, under one lock, so a job is
started once, recorded by whoever comes first, and in sight until then. A job that has waited for too
long is not started any more, but set aside to be given back. The limit: nothing here speaks to the
database but a heartbeat, and what happens to a claim there shows only as the worker writes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from django.db import transaction

from .exceptions import RetryLater
from .queues import ClaimedJob, Outcome, Queue
from .shutdown import Stoppable

SHORTEST_WAIT, LONGEST_WAIT = 0.25, 5.0  # for its turn in here, and no more than half of the claim
BEAT_PATIENCE = 1.0  # a heartbeat waits no longer for a row that the handler itself has locked
STOPPED = "the worker was stopped before the job ended"
NEVER = float("inf")


@dataclass(frozen=True)
class Source:
    """A queue, the callable its jobs are handed to, and whether the worker beats for them."""

    queue: Queue
    call: Callable[[ClaimedJob], object]
    heartbeat: bool = False


class Item:
    """A job on its way through the worker: waiting, then running, then ended or given back.

    Compared by identity: a job whose claim lapsed may be in here twice, under two claims.
    """

    __slots__ = ("beat_at", "ended_at", "give_back_at", "job", "source")

    def __init__(self, job: ClaimedJob, source: Source, claimed_at: float) -> None:
        self.job = job
        self.source = source
        claim = job.visibility_timeout
        self.give_back_at = claimed_at + min(max(SHORTEST_WAIT, claim / 2), LONGEST_WAIT)
        self.beat_at = claimed_at + claim / 3
        self.ended_at = NEVER

    def beat(self) -> bool:
        """Hold the claim for its whole time again; False if it has been taken back."""
        engine = self.source.queue.engine
        with transaction.atomic(engine.alias):
            engine.limit_transaction(BEAT_PATIENCE)
            held = self.job.heartbeat()
        self.beat_at = time.monotonic() + self.job.visibility_timeout / 3 if held else NEVER
        return held


class Hold:
    """What a worker has claimed, until it is written down what became of it."""

    def __init__(self, stop: Stoppable) -> None:
        self.stop = stop
        self.lock = threading.Lock()  # entered for each job: not through the conditions' own
        self.filled = threading.Condition(self.lock)  # there is something to start, or the end
        self.eased = threading.Condition(self.lock)  # a job has ended, or has been set aside
        self.occupied = threading.Event()
        self.closed = threading.Event()
        self.waiting: deque[Item] = deque()
        self.running: set[Item] = set()
        self.ended: dict[Item, Outcome] = {}
        self.unstarted: list[Item] = []  # to be given back
        self.started = 0

    def add(self, items: Sequence[Item]) -> None:
        """Claimed jobs, to be started in this order."""
        with self.lock:
            self.waiting.extend(items)
            self.occupied.set()
            self.filled.notify_all()

    def start(self) -> Item | None:
        """The next job to run; None if there is none, or none may start any more."""
        with self.lock:
            return self._start()

    def start_when_there_is(self) -> Item | None:
        """The next job to run, waiting for it; None when the worker ends."""
        with self.lock:
            while not self.closed.is_set():
                if item := self._start():
                    return item
                self.filled.wait()
        return None

    def _start(self) -> Item | None:
        if self.stop.is_set():
            return None
        now = time.monotonic()
        while self.waiting:
            item = self.waiting.popleft()
            if item.give_back_at > now:
                self.started += 1
                self.running.add(item)
                return item
            self.unstarted.append(item)
        return None

    def end(self, item: Item, outcome: Outcome) -> None:
        """The job has run, and ``outcome`` waits to be recorded."""
        with self.lock:
            self.running.discard(item)
            item.ended_at = time.monotonic()
            self.ended[item] = outcome
            if len(self.waiting) <= len(self.running) + 1:  # or nobody has anything to do yet
                self.eased.notify()

    def set_aside(self, until: float = NEVER) -> None:
        """Let the waiting jobs whose time in here ends by then be given back, unstarted."""
        with self.lock:
            if late := [item for item in self.waiting if item.give_back_at <= until]:
                self.waiting = deque(i for i in self.waiting if i.give_back_at > until)
                self.unstarted += late
                self.eased.notify()

    def to_record(self) -> list[tuple[Item, Outcome]]:
        with self.lock:
            return list(self.ended.items())

    def recorded(self, items: Iterable[Item]) -> None:
        """What came of these jobs is written down."""
        with self.lock:
            for item in items:
                self.ended.pop(item, None)

    def to_give_back(self) -> list[Item]:
        with self.lock:
            return list(self.unstarted)

    def given_back(self, count: int) -> None:
        """The first so many of the unstarted jobs are ours no more."""
        with self.lock:
            del self.unstarted[:count]

    def needs_writing(self, ended_by: float) -> bool:
        """Whether there are jobs to give back, or one that ended by then and is not recorded."""
        with self.lock:
            oldest = next(iter(self.ended), None)
            return bool(self.unstarted) or (oldest is not None and oldest.ended_at <= ended_by)

    def beating(self, until: float) -> list[Item]:
        """The running jobs whose claim the worker is to renew by then."""
        with self.lock:
            return [i for i in self.running if i.source.heartbeat and i.beat_at <= until]

    def abandon_running(self) -> list[Item]:
        """The jobs that still run; what they come to now is to run again elsewhere."""
        with self.lock:
            running = list(self.running)
            for item in running:
                self.ended[item] = Outcome(item.job, RetryLater(0, STOPPED))
            return running

    def taken(self) -> int:
        """How many jobs have been started, or wait to be."""
        with self.lock:
            return self.started + len(self.waiting)

    def is_empty(self) -> bool:
        with self.lock:
            return self._is_empty()

    def _is_empty(self) -> bool:
        return not (self.waiting or self.running or self.ended or self.unstarted)

    def rest_if_empty(self) -> None:
        """Let the keeper sleep until something is added."""
        with self.lock:
            if self._is_empty() and not self.closed.is_set():
                self.occupied.clear()

    def close(self) -> None:
        """Let the threads end."""
        with self.lock:
            self.closed.set()
            self.occupied.set()
            self.filled.notify_all()
