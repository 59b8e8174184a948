"""The statements that delete what has outlived its time; whether it has is ``retention``'s to say.

Rows are looked up along an index without a lock and deleted by id, up to ``limit`` at once, so that
no claim waits for one. A job is asked again for its state and age as it goes: one that was requeued
in between stays, and so does a row that somebody has locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from .reads import query_among
from .sql import TOTAL, Engine

FINISHED = """SELECT id FROM django_alkstore_job WHERE queue = %(queue)s AND state = '{state}'
    AND finished_at < %(until)s ORDER BY finished_at LIMIT %(limit)s"""
REMOVE = "{delete_jobs}"
# Rows are written in the order of their age, or nearly: the oldest have the lowest ids.
OLD_FIRES = """SELECT id FROM (SELECT id, fired_at FROM django_alkstore_fire
    ORDER BY id LIMIT %(limit)s) AS firsts WHERE fired_at < %(until)s"""
OLD_COUNTS = """SELECT id FROM (SELECT id, minute FROM django_alkstore_count
    WHERE minute > %(total)s ORDER BY id LIMIT %(limit)s) AS firsts WHERE minute < %(until)s"""
IDLE_TOTALS = """SELECT counted.id FROM django_alkstore_count counted
    WHERE counted.queue IN ({queues}) AND counted.minute = %(total)s
    AND NOT EXISTS (SELECT 1 FROM django_alkstore_count later
        WHERE later.queue = counted.queue AND later.minute > %(total)s)"""


def remove_finished(engine: Engine, queue: str, state: str, until: datetime, limit: int) -> int:
    """Delete jobs of a queue that died, or were done, before an instant; how many."""
    params = {"queue": queue, "until": engine.write(until), "limit": limit}
    rows = engine.query(FINISHED.format(state=state), params)
    which = f"LOWER(state) = '{state}' AND finished_at < %(until)s"
    return len(engine.change_these(REMOVE, [id for (id,) in rows], which, params))


def count_finished(engine: Engine, queue: str, state: str, until: datetime) -> int:
    """How many ``remove_finished`` would delete in all."""
    text = FINISHED.format(state=state).replace("SELECT id", "SELECT COUNT(*)")
    text = text.replace("ORDER BY finished_at LIMIT %(limit)s", "")
    return engine.query(text, {"queue": queue, "until": engine.write(until)})[0][0]


def remove_old(engine: Engine, table: str, until: datetime, limit: int) -> int:
    """Delete fires, or counts, from before an instant, among the first by id; how many."""
    old = {"fire": OLD_FIRES, "count": OLD_COUNTS}[table]
    params = {"until": engine.write(until), "limit": limit, "total": engine.write(TOTAL)}
    return _remove(engine, table, [id for (id,) in engine.query(old, params)])


def remove_idle_totals(engine: Engine, queues: Sequence[str]) -> int:
    """Delete the totals of those of the queues that have no other counts left; how many."""
    rows = query_among(engine, IDLE_TOTALS, queues, {"total": engine.write(TOTAL)})
    return _remove(engine, "count", [id for (id,) in rows])


def _remove(engine: Engine, table: str, ids: Sequence[int]) -> int:
    if not ids:
        return 0
    some = ", ".join(map(str, ids))
    text = f"DELETE FROM django_alkstore_{table} WHERE id IN ({some})"
    return engine.settle(lambda: engine.execute(text, {}))
