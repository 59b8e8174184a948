"""The record of throughput: what workers did with the jobs of each queue in each minute.

It costs the hot path next to nothing: an enqueue writes nothing here, a job adds to numbers in
memory, and a worker adds those to one row per queue and minute (and to the queue's total) every few
seconds. So rows do not grow with jobs, and two workers meet on a row for a moment only. The limit:
a worker that is killed loses its last ``FLUSH_SECONDS`` of statistics, and nothing else. What is
claimed by hand, outside a worker, is not counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from django.db import transaction

from . import sql

FLUSH_SECONDS = 5.0


class Tally:
    """Numbers by queue, of one process, until they are added to the rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: dict[str, Counter[str]] = defaultdict(Counter)
        self._flushed_at = time.monotonic()

    def add(self, queue: str, figure: str, count: int) -> None:
        """``figure`` is one of ``sql.COUNTED``."""
        if count > 0:
            with self._lock:
                self._figures[queue][figure] += count

    @property
    def is_empty(self) -> bool:
        return not self._figures

    def is_due(self, now: float) -> bool:
        """Whether there is something that has been here for long enough."""
        return bool(self._figures) and now - self._flushed_at >= FLUSH_SECONDS

    def flush(self, engine: sql.Engine) -> None:
        """Add everything to the rows; what cannot be added stays for the next time."""
        with self._lock:
            taken, self._figures = self._figures, defaultdict(Counter)
            self._flushed_at = time.monotonic()
        if not taken:
            return
        try:
            engine.settle(lambda: _add(engine, taken))
        except BaseException:
            with self._lock:
                for queue, figures in taken.items():
                    self._figures[queue].update(figures)
            raise


def _add(engine: sql.Engine, taken: Mapping[str, Counter[str]]) -> None:
    with transaction.atomic(engine.alias):
        for queue in sorted(taken):  # in one order, or two workers would wait for each other
            engine.add_counts(queue, {name: taken[queue][name] for name in sql.COUNTED})
