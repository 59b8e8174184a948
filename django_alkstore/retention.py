"""What has outlived its time is deleted: dead and done jobs, fires, counts. Live jobs never are.

In small batches, each looked up along an index without a lock and deleted by id, so that no claim
waits for one: by the leading scheduler, a batch between two passes however busy it is, and by
``alkstore_prune``. A row that somebody has locked is left for the next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from . import conf, prunes, reads, sql

BATCH = 200
PAUSE_SECONDS = 0.05  # between two batches of the leader's
MOMENT_SECONDS = 0.005
REST_SECONDS = 60.0  # once everything has been looked at


@dataclass(frozen=True)
class Pruned:
    """One batch: ``what`` is "dead", "done", "fire" or "count", ``queue`` the jobs'."""

    what: str
    queue: str | None
    count: int


def life_of(queue: str, state: str) -> float | None:
    """For how many seconds a dead or done job of the queue stays; None: for ever.

    A job that was kept as done by a queue that keeps none any more goes when dead ones do.
    """
    settings = conf.current()
    kept = settings.of(queue).retention
    return kept if state == "done" and kept is not None else settings.DEAD_RETENTION


def batches(engine: sql.Engine, limit: int = BATCH) -> Iterator[Pruned]:
    """Delete all that is due, one batch at each step; some delete nothing."""
    for queue in each(engine, reads.finished_queues):
        for state in ("dead", "done"):
            yield from finished(engine, queue, state, life_of(queue, state), limit)
    settings = conf.current()
    lives = {"fire": settings.FIRE_RETENTION, "count": settings.COUNT_RETENTION}
    for table, life in lives.items():
        yield from _old(engine, table, life, limit)
    for queue in each(engine, reads.counted_queues):
        yield Pruned("count", queue, prunes.remove_idle_totals(engine, [queue]))


def finished(
    engine: sql.Engine, queue: str, state: str, life: float | None, limit: int = BATCH
) -> Iterator[Pruned]:
    """Delete the queue's jobs that have been dead, or done, for longer than ``life``."""
    if life is None:
        return
    until = _before(engine, life)
    while True:
        count = prunes.remove_finished(engine, queue, state, until, limit)
        yield Pruned(state, queue, count)
        if not count:
            return


def doomed(
    engine: sql.Engine, queue: str | None, states: Sequence[str], life: float | None
) -> Iterator[Pruned]:
    """What there is to delete of finished jobs: of one queue those that old, or of all what is
    due. Counts along the index; deletes nothing."""
    for name in each(engine, reads.finished_queues) if queue is None else [queue]:
        for state in states:
            limit = life if queue is not None else life_of(name, state)
            if limit is not None:
                yield Pruned(
                    state, name, prunes.count_finished(engine, name, state, _before(engine, limit))
                )


def _old(engine: sql.Engine, table: str, life: float | None, limit: int) -> Iterator[Pruned]:
    if life is None:
        return
    until = _before(engine, life)
    while True:
        count = prunes.remove_old(engine, table, until, limit)
        yield Pruned(table, None, count)
        if not count:
            return


def _before(engine: sql.Engine, life: float) -> datetime:
    return engine.clock() - timedelta(seconds=life)


def each(engine: sql.Engine, page_after: Callable[[sql.Engine, str], list[str]]) -> Iterator[str]:
    """All names, where ``page_after`` gives the next ones."""
    after = ""
    while names := page_after(engine, after):
        yield from names
        after = max(names)


@dataclass
class Pruner:
    """The leader's part: a moment now and then, and a rest when nothing is left."""

    engine: sql.Engine
    next_at: float = field(default_factory=time.monotonic)
    found: bool = False  # whether the last step did: the next one is worth waking up for

    def __post_init__(self) -> None:
        self._batches = batches(self.engine)

    def step(self) -> int:
        """Delete a batch, looking for one no longer than a moment; how many rows went."""
        now = time.monotonic()
        if now < self.next_at:
            return 0
        for pruned in self._batches:
            if pruned.count or time.monotonic() - now > MOMENT_SECONDS:
                self.found = pruned.count > 0
                self.next_at = time.monotonic() + PAUSE_SECONDS
                return pruned.count
        self.rest()
        return 0

    def rest(self) -> None:
        """Begin from the start, after a while."""
        self._batches = batches(self.engine)
        self.found = False
        self.next_at = time.monotonic() + REST_SECONDS
