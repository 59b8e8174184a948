"""What people and probes are shown, and the names of queues: reads alone, without a lock.

Each figure is counted along one index, and at most ``most`` entries of it; names are hopped to, one
step for each queue, however many rows it has. So a read costs the same whether a queue holds ten
jobs or a million. The limit: the statements of one page are no snapshot, since rows may move between
two of them; and nothing that a worker or the scheduler decides may rest on what is read here.

The ORDER BYs are those of the indexes: without them PostgreSQL may choose to scan the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache

from .sql import DUE, NO_BOUNDARY, TOTAL, WAITS, Engine, MySQL, Params

QUEUES_SHOWN = 200
QUEUES_PER_STATEMENT = 100

FIGURES = """SELECT %(queue)s AS queue, waiting.ready, ({oldest_ready}), soon.scheduled, soon.next_due,
    soon.running, soon.lapsed, soon.first_due, soon.seen, dead.dead, dead.lately
    FROM (SELECT COUNT(*) AS ready FROM (SELECT 1 AS one FROM django_alkstore_job
        WHERE queue = %(queue)s AND state = 'ready'
        ORDER BY priority DESC, run_at, id LIMIT {most}) AS entries) AS waiting,
    (SELECT COUNT(*) AS seen,
        SUM(CASE WHEN state = 'scheduled' THEN 1 ELSE 0 END) AS scheduled,
        {next_due} AS next_due,
        SUM(CASE WHEN state = 'running' THEN 1 ELSE 0 END) AS running,
        SUM(CASE WHEN state = 'running' AND due_at <= {now} THEN 1 ELSE 0 END) AS lapsed,
        {first_due} AS first_due
        FROM ({due_soonest}) AS entries) AS soon,
    (SELECT COUNT(*) AS dead,
        SUM(CASE WHEN finished_at >= %(since)s THEN 1 ELSE 0 END) AS lately
        FROM (SELECT finished_at FROM django_alkstore_job
            WHERE queue = %(queue)s AND state = 'dead' AND finished_at IS NOT NULL
            ORDER BY finished_at DESC LIMIT {most}) AS entries) AS dead"""
NEXT_DUE = "MIN(CASE WHEN state = 'scheduled' THEN due_at END)"
FIRST_DUE = "MIN(CASE WHEN state IN ('scheduled', 'running') THEN due_at END)"
READY_OF = "django_alkstore_job WHERE queue = %(queue)s AND state = 'ready'"

COUNTS = """SELECT queue, {bucket} AS bucket, SUM(claimed), SUM(acked), SUM(retried), SUM(died),
    SUM(lost) FROM django_alkstore_count WHERE queue IN ({queues}) AND minute >= %(since)s
    GROUP BY queue, bucket"""
TOTALS = """SELECT queue, claimed, acked, retried, died, lost FROM django_alkstore_count
    WHERE queue IN ({queues}) AND minute = %(total)s"""

SCHEDULES_SHOWN_FIRST = f"""SELECT name, spec, queue, {{enabled}},
    CASE WHEN {NO_BOUNDARY} THEN NULL ELSE {{next_fire_at}} END,
    CASE WHEN last_fired_at < '9999-01-01' THEN {{last_fired_at}} END,
    (SELECT {{fired_at}} FROM django_alkstore_fire WHERE schedule = name
        AND boundary = last_fired_at),
    CASE WHEN {WAITS} THEN 1 ELSE 0 END, CASE WHEN ended_at IS NULL THEN 0 ELSE 1 END
    FROM django_alkstore_schedule ORDER BY enabled DESC, next_fire_at, name LIMIT %(limit)s"""
SCHEDULE_LATE = f"""SELECT 1 FROM django_alkstore_schedule
    WHERE {{enabled}} AND {DUE} AND NOT {WAITS} ORDER BY next_fire_at LIMIT 1"""
SKIPPED = """SELECT schedule, SUM(skipped) FROM django_alkstore_fire
    WHERE skipped > 0 AND fired_at >= %(since)s GROUP BY schedule"""
LEASE = """SELECT owner, {acquired_at}, {expires_at} FROM django_alkstore_lock
    WHERE name = %(name)s AND owner <> ''"""


class Wording:
    """What has to be put otherwise where a planner would not see the index."""

    # An index skip-scan. The conditions are those of the partial indexes, or the planner could not
    # use them.
    queue_names = " UNION ALL ".join(
        f"""SELECT queue FROM (WITH RECURSIVE hop (queue) AS (SELECT MIN(queue) FROM django_alkstore_job WHERE {among}
            UNION ALL SELECT (SELECT MIN(job.queue) FROM django_alkstore_job job
                WHERE {among} AND job.queue > hop.queue) FROM hop WHERE hop.queue IS NOT NULL)
        SELECT queue FROM hop WHERE queue IS NOT NULL LIMIT %(limit)s) AS names"""
        for among in ("state = 'ready'", "due_at IS NOT NULL", "finished_at IS NOT NULL")
    )
    names_after = """WITH RECURSIVE hop (queue) AS (
            SELECT MIN(queue) FROM django_alkstore_{table} WHERE {among} queue > %(after)s
            UNION ALL SELECT (SELECT MIN(later.queue) FROM django_alkstore_{table} later
                WHERE {among} later.queue > hop.queue) FROM hop WHERE hop.queue IS NOT NULL)
        SELECT queue FROM hop WHERE queue IS NOT NULL LIMIT %(limit)s"""
    # The index has the priority before run_at: one step for each priority, at most so many.
    oldest_ready = f"""WITH RECURSIVE hop (priority, steps) AS (
            SELECT MAX(priority), 1 FROM {READY_OF}
            UNION ALL SELECT (SELECT MAX(job.priority) FROM django_alkstore_job job
                WHERE job.queue = %(queue)s AND job.state = 'ready'
                AND job.priority < hop.priority),
                steps + 1 FROM hop WHERE hop.priority IS NOT NULL AND steps < 100)
        SELECT {{min_oldest}} FROM (SELECT (SELECT run_at FROM {READY_OF}
            AND priority = hop.priority ORDER BY run_at LIMIT 1) AS oldest FROM hop) AS oldests"""
    most = "(SELECT %(most)s)"  # which PostgreSQL cannot see: see ``limit`` in ``sql``
    due_soonest = f"""SELECT state, due_at FROM django_alkstore_job
        WHERE queue = %(queue)s AND due_at IS NOT NULL ORDER BY due_at LIMIT {most}"""


class MySQLWording(Wording):
    # Here it is the planner that hops, and it would not in a subquery.
    queue_names = "SELECT queue FROM django_alkstore_job GROUP BY queue LIMIT %(limit)s"
    names_after = """SELECT queue FROM django_alkstore_{table} WHERE queue > %(after)s
        GROUP BY queue LIMIT %(limit)s"""
    # Nor does it hop over priorities: of those but the last, the first ``most`` entries are seen.
    oldest_ready = f"""SELECT MIN(oldest) FROM (
        SELECT MIN(run_at) AS oldest FROM (SELECT run_at FROM {READY_OF}
            ORDER BY priority DESC, run_at, id LIMIT %(most)s) AS firsts
        UNION ALL (SELECT run_at AS oldest FROM {READY_OF} AND priority = (
            SELECT priority FROM {READY_OF} ORDER BY priority, run_at DESC, id DESC LIMIT 1)
            ORDER BY run_at LIMIT 1)) AS oldests"""
    most = "%(most)s"
    due_soonest = " UNION ALL ".join(
        f"""(SELECT state, due_at FROM django_alkstore_job WHERE queue = %(queue)s
            AND state = '{state}' AND due_at IS NOT NULL ORDER BY due_at LIMIT %(most)s)"""
        for state in ("running", "scheduled")
    )


def wording(dialect: type[Engine]) -> type[Wording]:
    return MySQLWording if issubclass(dialect, MySQL) else Wording


# -- the names of queues --------------------------------------------------------------------------


def queue_names(engine: Engine, limit: int = QUEUES_SHOWN) -> list[str]:
    """The names of queues that have jobs, at most ``limit`` of each kind of row."""
    rows = engine.query(wording(type(engine)).queue_names, {"limit": limit})
    return sorted({name for (name,) in rows})


def counted_queues(engine: Engine, after: str = "", limit: int = QUEUES_SHOWN) -> list[str]:
    """The next queues by name that something has been counted for."""
    text = wording(type(engine)).names_after.format(table="count", among="")
    return _names(engine, text, after, limit)


def finished_queues(engine: Engine, after: str = "", limit: int = QUEUES_SHOWN) -> list[str]:
    """The next queues by name that have finished jobs; on MySQL, that have any."""
    text = wording(type(engine)).names_after.format(
        table="job", among="finished_at IS NOT NULL AND"
    )
    return _names(engine, text, after, limit)


def _names(engine: Engine, text: str, after: str, limit: int) -> list[str]:
    return [name for (name,) in engine.query(text, {"after": after, "limit": limit})]


# -- jobs and counts ------------------------------------------------------------------------------


def figures(engine: Engine, queues: Sequence[str], since: datetime, most: int) -> list[tuple]:
    """For each queue what ``FIGURES`` names, in no order."""
    params = {"since": engine.write(since), "most": most}
    text = _figures_text(type(engine))
    with engine.uncompiled():
        return engine.query_each(text, queues, QUEUES_PER_STATEMENT, params)


@cache
def _figures_text(dialect: type[Engine]) -> str:
    words = wording(dialect)
    return FIGURES.format(
        oldest_ready=words.oldest_ready.format(min_oldest=dialect.plain("MIN(oldest)")),
        next_due=dialect.plain(NEXT_DUE),
        first_due=dialect.plain(FIRST_DUE),
        due_soonest=words.due_soonest,
        most=words.most,
        now=dialect.now,
    )


def counts(engine: Engine, queues: Sequence[str], since: datetime, unit: str) -> list[tuple]:
    """Sums of counts by queue and the start of the minute or hour."""
    text = COUNTS.replace("{bucket}", engine.plain(engine.start_of(unit, "minute")))
    return query_among(engine, text, queues, {"since": engine.write(since)})


def totals(engine: Engine, queues: Sequence[str]) -> list[tuple]:
    """For each queue that was counted, the sums of all times."""
    return query_among(engine, TOTALS, queues, {"total": engine.write(TOTAL)})


def query_among(engine: Engine, text: str, queues: Sequence[str], params: Params) -> list[tuple]:
    """Run a query of what any of ``{queues}`` has."""
    if not queues:
        return []
    names = {f"queue_{n}": name for n, name in enumerate(queues)}
    among = ", ".join(f"%({name})s" for name in names)
    return engine.query(text.format(queues=among), names | params)


# -- schedules and their leader -------------------------------------------------------------------


def schedules_shown(engine: Engine, limit: int) -> list[tuple]:
    """Schedules as people see them: the enabled first, the most overdue first."""
    return engine.query(engine.spell(SCHEDULES_SHOWN_FIRST), {"limit": limit})


def has_schedules_due(engine: Engine, until: datetime) -> bool:
    """Whether an enabled schedule has a boundary that is at least so old."""
    return bool(engine.query(engine.spell(SCHEDULE_LATE), {"until": engine.write(until)}))


def skipped(engine: Engine, since: datetime) -> dict[str, int]:
    """By schedule, how many boundaries were skipped since."""
    return dict(engine.query(SKIPPED, {"since": engine.write(since)}))


def lease(engine: Engine, name: str) -> tuple | None:
    """Owner, start and end of a lock that was not released, lapsed or not."""
    rows = engine.query(engine.spell(LEASE), {"name": name})
    return rows[0] if rows else None
