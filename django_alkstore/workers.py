"""The loop behind run_outbox: claim, hand over, record, wait.

A stop lets the job in hand finish and starts no other. A database that fails is waited for. A
queue without a registered callable keeps its rows and is warned about.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import Error

from . import sql
from .queues import Queue, process
from .shutdown import Stoppable

logger = logging.getLogger(__name__)

LONGEST_OUTAGE_PAUSE = 5.0


@dataclass(frozen=True)
class Source:
    """A queue and the callable that its jobs are handed to."""

    queue: Queue
    call: Callable[..., Any]


def default_worker_id() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


@dataclass
class Worker:
    """One worker in one thread over several queues, a job of each in turn."""

    sources: Sequence[Source]
    worker_id: str
    stop: Stoppable
    poll_interval: float
    max_jobs: int | None = None
    processed: int = 0

    def run(self) -> None:
        """Work until stopped, or until ``max_jobs`` have been processed."""
        outages = 0
        while not self._is_finished():
            try:
                if not self.pass_once():
                    self.stop.wait(self._idle_seconds())
                outages = 0
            except Error:
                logger.warning("the database failed; trying again", exc_info=True)
                self._close_connections()
                self.stop.wait(min(0.1 * 2**outages, LONGEST_OUTAGE_PAUSE))
                outages = min(outages + 1, 10)

    def burst(self) -> None:
        """Work until no job is ready, ``max_jobs`` have been processed, or stopped."""
        while not self._is_finished() and self.pass_once():
            pass

    def pass_once(self) -> bool:
        """Process up to one job of each queue; whether there was any."""
        worked = False
        for source in self.sources:
            if self._is_finished():
                break
            worked |= self._one(source)
        return worked

    def one(self) -> bool:
        """Process one job of any queue."""
        return any(self._one(source) for source in self.sources)

    def _one(self, source: Source) -> bool:
        job = source.queue.claim(self.worker_id)
        if job is None:
            return False
        process(job, source.call)
        self.processed += 1
        return True

    def _is_finished(self) -> bool:
        return self.stop.is_set() or self.processed == self.max_jobs

    def _idle_seconds(self) -> float:
        due = (s.queue.engine.seconds_until_due(s.queue.name) for s in self.sources)
        soonest = min((seconds for seconds in due if seconds is not None), default=None)
        if soonest is None:
            return self.poll_interval
        return min(self.poll_interval, max(soonest, 0.05))

    def _close_connections(self) -> None:
        for alias in {source.queue.engine.alias for source in self.sources}:
            sql.connections[alias].close()
