"""Every statement that the guarantees depend on: one text per verb, one class per database.

Ownership and due time are decided by the server's clock alone (on SQLite, which is one host, by the
process clock). A claim, a sweep and a lock take rows that nobody holds and skip the rest. A
write-back is fenced by id, claim token and state, and says whether it matched. Conflicts that the
database asks to retry are retried here when the transaction is ours, and never inside the
caller's. No policy lives here: what to claim, how long and how often is the callers' business.
What only people see is in ``reads``, and what deletes old rows in ``prunes``.

State words are literals in the texts, or no planner could use a partial index.
"""

from __future__ import annotations

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connections, router, transaction

from . import conf
from .exceptions import InvalidOption, expected
from .options import AT_ONCE, JobOptions, Start

Result = TypeVar("Result")
Params = dict[str, Any]

CONFLICT_TRIES = 12
SLOW_CONFLICT_TRIES, SLOW_SECONDS = 6, 5.0  # where each try is a wait for a lock, that is enough
ROWS_PER_INSERT = 1_000
TEXT_PER_INSERT = 1_048_576  # characters: half of what the smallest usual packet limit takes
IDS_PER_STATEMENT = 500
SWEEP_ROWS = 250  # a claim that has to sweep first is still a quick one
PEEKS_PER_STATEMENT = 100  # SQLite joins at most 500 SELECTs
SHORTEST_TIMEOUT = 10.0  # on SQLite, for the one write lock

# -- the statements: {words} are spelled per database by ``Engine.words``. ------------------------

INSERT_COLUMNS = """
INSERT INTO django_alkstore_job (queue, state, priority, payload, run_at, due_at, attempts,
    max_attempts, visibility_timeout, backoff, expires_at, schedule, scheduled_for, created_at)
VALUES """
INSERT_ROW = """(%(queue)s, {state}, %(priority)s, %(payload)s, {run_at}, {due_at}, 0,
    %(max_attempts)s, %(visibility_timeout)s, %(backoff)s, {expires_at}, %(schedule)s,
    %(scheduled_for)s, {now})"""
INSERT_NOW = {"state": "'ready'", "run_at": "{now}", "due_at": "{expires_at}"}
INSERT_LATER = {"state": "'scheduled'", "run_at": "{later}", "due_at": "{later}"}
INSERT_AT = {
    "state": "CASE WHEN %(run_at)s > {now} THEN 'scheduled' ELSE 'ready' END",
    "run_at": "%(run_at)s",
    "due_at": "CASE WHEN %(run_at)s > {now} THEN %(run_at)s ELSE %(expires_at)s END",
}

READY = """django_alkstore_job WHERE queue = %(queue)s AND state = 'ready'
    AND (expires_at IS NULL OR expires_at > {now})"""
CLAIM_PICK = f"SELECT {{picked}} FROM {READY} ORDER BY priority DESC, run_at, id LIMIT %(limit)s"
# Looks at what is no older than ``lately``: beside an old snapshot PostgreSQL keeps an entry for each
# job that has been, and to pass over them in the index is quick, while to look each up is not.
READY_LATELY = f"{READY} AND run_at >= {{lately}}"
CLAIM_PICK_LATELY = CLAIM_PICK.replace(READY, READY_LATELY)
CLAIM = """UPDATE django_alkstore_job SET state = 'running', attempts = attempts + 1,
    worker_id = %(worker_id)s, claim_token = %(token)s, due_at = {claim_lapses}"""
CLAIMED = """id, {payload}, attempts, max_attempts, visibility_timeout, backoff, {due_at},
    {created_at}, schedule, {scheduled_for}, priority, {run_at}"""
TO_CLAIM = CLAIMED.replace("attempts,", "attempts + 1,", 1).replace("due_at", "lapses_at")

DUE_JOBS = "django_alkstore_job WHERE queue = %(queue)s AND {live_on_mysql}due_at <= {now}"
SWEEP_PICK = f"SELECT {{picked}} FROM {DUE_JOBS} {{oldest_first}}"
DUE_LATELY = f"{DUE_JOBS} AND due_at >= {{lately}}"
SWEEP_PICK_LATELY = SWEEP_PICK.replace(DUE_JOBS, DUE_LATELY)
LIVE = "state IN ('ready', 'scheduled', 'running')"
DIES = (
    """COALESCE(expires_at <= {now} OR (state = 'running' AND attempts >= max_attempts), FALSE)"""
)
SWEPT_STATE = f"CASE WHEN NOT {LIVE} THEN state WHEN {DIES} THEN 'dead' ELSE 'ready' END"
# state is set last: MySQL evaluates assignments in order, and the others ask for the old one.
SWEEP = f"""UPDATE django_alkstore_job SET
    last_error = CASE WHEN NOT {LIVE} THEN last_error
        WHEN state = 'running' AND attempts >= max_attempts THEN 'the last claim lapsed'
        WHEN expires_at <= {{now}} THEN 'expired before it could run'
        WHEN state = 'running' THEN 'the claim lapsed' ELSE last_error END,
    finished_at = CASE WHEN {LIVE} AND {DIES} THEN {{now}} ELSE finished_at END,
    due_at = CASE WHEN {LIVE} AND NOT {DIES} THEN expires_at END,
    worker_id = CASE WHEN {LIVE} AND NOT {DIES} THEN NULL ELSE worker_id END,
    claim_token = NULL,
    state = {SWEPT_STATE}"""
UNDATED = """django_alkstore_job
    WHERE queue = %(queue)s AND state = '{{state}}' AND due_at IS NULL"""
# Not EXISTS: after a drain PostgreSQL still thinks that ready rows abound, and would walk the table
# to meet one. In this order only the index is quick.
PEEK = f"""SELECT (SELECT 1 FROM {READY} ORDER BY priority DESC, run_at, id LIMIT 1),
    ({{first_due}}), {{plain_now}}"""
PEEK_LATELY = PEEK.replace(READY, READY_LATELY).replace("{first_due}", "{first_due_soon}")
FIRST_DUE = """SELECT MIN(due_at) FROM django_alkstore_job
    WHERE queue = %(queue)s AND due_at IS NOT NULL"""

FENCE = "WHERE id = %(id)s AND claim_token = %(token)s AND state = 'running'"
# LOWER hides the state from PostgreSQL's planner, which would rather scan all of a partial index, the
# entries of finished jobs included, than look up many ids.
OURS = """WHERE id IN ({{ids}}) AND claim_token = %(token)s AND LOWER(state) = 'running'"""
ACK = f"DELETE FROM django_alkstore_job {OURS}"
KEEP = f"""UPDATE django_alkstore_job SET state = 'done', finished_at = {{now}}, due_at = NULL,
    claim_token = NULL {OURS}"""
FAIL = f"""UPDATE django_alkstore_job SET state = 'dead', finished_at = {{now}}, due_at = NULL,
    claim_token = NULL, last_error = COALESCE(%(error)s, last_error, 'failed without a reason'),
    last_traceback = %(traceback)s {FENCE}"""
RETRY_NOW = f"""UPDATE django_alkstore_job SET state = 'ready', run_at = {{now}},
    due_at = expires_at, worker_id = NULL, claim_token = NULL, last_error = %(error)s,
    last_traceback = %(traceback)s {FENCE}"""
RETRY_LATER = f"""UPDATE django_alkstore_job SET state = 'scheduled', run_at = {{later}},
    due_at = CASE WHEN expires_at < {{later}} THEN expires_at ELSE {{later}} END,
    worker_id = NULL, claim_token = NULL, last_error = %(error)s,
    last_traceback = %(traceback)s {FENCE}"""
RELEASE = f"""UPDATE django_alkstore_job SET state = 'ready', attempts = attempts - 1,
    due_at = expires_at, worker_id = NULL, claim_token = NULL {OURS}"""
HEARTBEAT = f"UPDATE django_alkstore_job SET due_at = {{extended}} {FENCE}"
LAPSES = f"SELECT {{due_at}} FROM django_alkstore_job {FENCE}"
CANCEL = """UPDATE django_alkstore_job SET state = 'dead', due_at = NULL, finished_at = {now},
    last_error = 'cancelled'
    WHERE id = %(id)s AND queue = %(queue)s AND state IN ('ready', 'scheduled')"""

# What people do to jobs of theirs, by id. A row that a worker has locked is left to it.
THESE = "{{jobs_by_id}} WHERE id IN ({{{{ids}}}}) AND {which}"
REQUEUE = """UPDATE {jobs_by_id} SET state = 'ready', attempts = 0, run_at = {now},
    due_at = NULL, expires_at = NULL, finished_at = NULL, worker_id = NULL, claim_token = NULL"""
RUN_NOW = "UPDATE {jobs_by_id} SET state = 'ready', run_at = {now}, due_at = expires_at"
CANCEL_THESE = """UPDATE {jobs_by_id} SET state = 'dead', due_at = NULL,
    finished_at = {now}, last_error = 'cancelled'"""
REORDER = "UPDATE {jobs_by_id} SET priority = %(priority)s"
STATES_OF = "SELECT id, state FROM django_alkstore_job WHERE id IN ({{ids}})"
WINDOW = """SELECT id, CASE WHEN {{which}} THEN 1 ELSE 0 END FROM django_alkstore_job
    WHERE id > %(after)s ORDER BY id LIMIT %(limit)s"""

MISSPELT_COLUMNS = """SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name LIKE 'django_alkstore_%%' AND collation_name <> 'utf8mb4_bin' LIMIT 1"""

LOCK_FREE = "django_alkstore_lock WHERE name = %(name)s AND expires_at <= {now}"
LOCK_PICK = f"SELECT {{picked}} FROM {LOCK_FREE}"
LOCK_TAKE = """UPDATE django_alkstore_lock SET owner = %(owner)s, token = token + 1,
    acquired_at = {now}, expires_at = {lock_lapses}"""
LOCK_ADD = """{insert_new} INTO django_alkstore_lock (name, owner, token, acquired_at, expires_at)
    VALUES (%(name)s, %(owner)s, 1, {now}, {lock_lapses}) {or_nothing}"""
LOCK_FENCE = "WHERE name = %(name)s AND owner = %(owner)s AND token = %(token)s"
LOCK_RENEW = f"UPDATE django_alkstore_lock SET expires_at = {{lock_lapses}} {LOCK_FENCE}"
LOCK_RELEASE = f"UPDATE django_alkstore_lock SET owner = '', expires_at = {{now}} {LOCK_FENCE}"

# A boundary that no datetime can hold ('infinity', say, or any text on SQLite) counts as missing.
DUE = "next_fire_at <= %(until)s AND next_fire_at > '1970-01-01'"
NO_BOUNDARY = (
    "(next_fire_at IS NULL OR next_fire_at <= '1970-01-01' OR next_fire_at >= '9999-01-01')"
)
# Whether the job of the last boundary, or one that a person fired, has not come to an end. Each along
# its index: an OR over the boundary would walk all of the schedule's fires.
# And not EXISTS: PostgreSQL may then collect the fires and jobs of all schedules beforehand.
LIVES = """((SELECT 1 FROM django_alkstore_fire fire JOIN django_alkstore_job job
    ON job.id = fire.job_id WHERE fire.schedule = django_alkstore_schedule.name AND {which}
    AND (job.state = 'running' OR job.state IN ('ready', 'scheduled')
        AND (job.expires_at IS NULL OR job.expires_at > {{now}})) LIMIT 1) IS NOT NULL)"""
ALIVE = "({} OR {})".format(
    LIVES.format(which="fire.boundary = django_alkstore_schedule.last_fired_at"),
    LIVES.format(which="fire.boundary IS NULL"),
)
WAITS = f"(overlap = 'queue' AND {ALIVE})"  # for that job to end, however long its boundary is due
SCHEDULE_COLUMNS = f"""SELECT id, name, spec, queue, {{payload}}, priority, max_attempts,
    visibility_timeout, backoff, expires_in, timezone, catch_up, overlap, jitter,
    {{starts_at}}, {{ends_at}}, max_fires, fires, declared, {{enabled}},
    CASE WHEN ended_at IS NULL THEN 0 ELSE 1 END,
    CASE WHEN {NO_BOUNDARY} THEN NULL ELSE {{next_fire_at}} END FROM django_alkstore_schedule"""
LAST_LIVES = f"SELECT 1 FROM django_alkstore_schedule WHERE id = %(id)s AND {ALIVE}"
SCHEDULE_NAMED = f"{SCHEDULE_COLUMNS} WHERE name = %(name)s"
SCHEDULES = f"""{SCHEDULE_COLUMNS}
    WHERE {{enabled}} AND {{{{which}}}} ORDER BY next_fire_at LIMIT {{limit}}"""
SCHEDULE_ADVANCE = """UPDATE django_alkstore_schedule SET next_fire_at = %(next)s,
    last_fired_at = COALESCE(%(last)s, last_fired_at), fires = fires + %(fires)s,
    ended_at = {{ended}}
    WHERE id = %(id)s AND {enabled} AND {{seen}}"""
SCHEDULE_NEXT = """SELECT {min_next_fire_at} FROM django_alkstore_schedule
    WHERE {enabled} AND next_fire_at > %(after)s AND next_fire_at < '9999-01-01' {{without}}"""
FIRED = """SELECT {boundary} FROM django_alkstore_fire
    WHERE schedule = %(schedule)s AND boundary IN ({{boundaries}})"""

COUNTED = ("claimed", "acked", "retried", "died", "lost")
TOTAL = datetime(1970, 1, 1, tzinfo=timezone.utc)  # the "minute" of the row that sums up all others
COUNT_ADD = """INSERT INTO django_alkstore_count
    (queue, minute, claimed, acked, retried, died, lost)
    VALUES (%(queue)s, %(total)s, %(claimed)s, %(acked)s, %(retried)s, %(died)s, %(lost)s),
    (%(queue)s, {minute}, %(claimed)s, %(acked)s, %(retried)s, %(died)s, %(lost)s) {or_add}"""


class NewJob(NamedTuple):
    """What an insert stamps on a row; ``payload`` is JSON text."""

    queue: str
    payload: str
    options: JobOptions
    start: Start = AT_ONCE
    schedule: str | None = None


@dataclass(frozen=True)
class Swept:
    """What a sweep changed; ``full``: it stopped at its bound, so there may be more."""

    readied: int
    dead: Sequence[int]  # the ids of those that died
    full: bool

    @property
    def died(self) -> int:
        return len(self.dead)


@dataclass(frozen=True)
class Peek:
    """What an idle worker needs to know; ``seconds``: until time alone changes a row."""

    ready: bool
    seconds: float | None

    @property
    def has_live_rows(self) -> bool:
        return self.ready or self.seconds is not None


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule as the tick reads it; ``payload`` is JSON text, ``seen`` the stored boundary."""

    id: int
    name: str
    spec: str
    queue: str
    payload: str
    priority: int | None
    max_attempts: int | None
    visibility_timeout: float | None
    backoff: float | None
    expires_in: float | None
    timezone: str | None
    catch_up: str
    overlap: str
    jitter: float
    starts_at: Any
    ends_at: Any
    max_fires: int | None
    fires: int
    declared: bool
    enabled: bool
    ended: bool
    seen: Any


def utc_now() -> datetime:
    """The process clock, which decides on SQLite alone."""
    return datetime.now(timezone.utc)


def write_alias(using: str | None = None) -> str:
    """``using``, or ALKSTORE's DATABASE, or what the router says for writes to Job."""
    if using is not None:
        if using not in connections:
            raise InvalidOption(expected("using", "an alias in DATABASES", using))
        return using
    return conf.current().DATABASE or router.db_for_write(apps.get_model("django_alkstore", "Job"))


def engine(using: str | None = None) -> Engine:
    """The statements for the database behind an alias; raises InvalidOption for an unknown one."""
    return _engine_of(write_alias(using))


@cache
def _engine_of(alias: str) -> Engine:
    connection = connections[alias]
    if connection.vendor == "sqlite" and not connection.features.can_return_columns_from_insert:
        return OldSQLite(alias)
    return _ENGINES[connection.vendor](alias)


def in_atomic(alias: str) -> bool:
    """Whether ``transaction.atomic()`` is open; the block that wraps a TestCase is none."""
    for block in connections[alias].atomic_blocks:
        if not getattr(block, "_from_testcase", False):
            return True
    return False


def claim_order(row: tuple) -> tuple:
    """The sort key of what ``claim`` returns: priority, then run_at, then id."""
    return -row[10], row[11] is not None, row[11], row[0]


class Engine(ABC):
    """The verbs. A subclass says how its database spells the few things that differ."""

    now: str
    skip_locked = ""
    enabled = "enabled"
    insert_new = "INSERT"
    or_nothing = "ON CONFLICT DO NOTHING"
    live_on_mysql = ""
    jobs_by_id = "django_alkstore_job"
    delete_jobs = "DELETE FROM django_alkstore_job"
    first_due = FIRST_DUE
    # A limit that PostgreSQL cannot see: sure of only a few rows, it would collect and sort them all.
    limit = "(SELECT %(limit)s)"
    oldest_first = f"ORDER BY due_at LIMIT {limit}"
    or_add = "ON CONFLICT (queue, minute) DO UPDATE SET " + ", ".join(
        f"{name} = django_alkstore_count.{name} + excluded.{name}" for name in COUNTED
    )

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # -- what differs ---------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def plus(instant: str, seconds: str) -> str:
        """SQL for an instant and a number of seconds later."""

    @staticmethod
    @abstractmethod
    def plain(instant: str) -> str:
        """SQL that yields an instant in UTC, without a zone, whatever the session's zone is; what
        no datetime can hold, which a hand may have written, yields what ``read`` takes as None."""

    @staticmethod
    @abstractmethod
    def start_of(unit: str, instant: str) -> str:
        """SQL that yields the start of the instant's minute or hour, in UTC."""

    @staticmethod
    def json_text(column: str) -> str:
        """SQL that yields a JSON column as text, unparsed."""
        return column

    @staticmethod
    @abstractmethod
    def is_conflict(error: BaseException) -> bool:
        """Whether the driver's ``error`` asks for the transaction to be tried again."""

    @abstractmethod
    def clock(self) -> datetime:
        """Now, by the clock that decides."""

    @abstractmethod
    def move(self, pick: str, change: str, before: str, after: str, params: Params) -> list[tuple]:
        """Change the rows that ``pick`` selects and nobody else holds, and return of each what
        ``after`` names: in terms of the row as it was, that is ``before``. The id comes first."""

    @abstractmethod
    def insert_rows(self, text: str, params: Params, count: int, besides: str) -> list[int]:
        """Run an INSERT of ``count`` rows; their ids, in order."""

    def write(self, instant: datetime | None) -> Any:
        """An aware instant as a parameter."""
        return instant and str(instant.astimezone(timezone.utc).replace(tzinfo=None))

    def read(self, value: Any) -> datetime | None:
        """What ``plain`` yielded, as an aware instant."""
        return value and value.replace(tzinfo=timezone.utc)

    def rewrite(self, value: Any) -> Any:
        """What ``plain`` yielded, as a parameter that equals the column it came from."""
        return self.write(self.read(value))

    def worth_locking(self, rows: str, params: Params) -> bool:
        """Whether a change could match; asked only where a change locks the whole database."""
        return True

    def limit_transaction(self, seconds: float) -> None:
        """Let the open transaction neither idle nor wait for a row longer, where that can be."""

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """For reads that look dear to the planner and are not: they are not compiled first."""
        yield

    def faults(self) -> list[str]:
        """What of the database's set-up ``checks`` should warn of."""
        return []

    # -- running --------------------------------------------------------------------------------

    @property
    def connection(self) -> Any:
        return connections[self.alias]

    @classmethod
    def words(cls) -> dict[str, str]:
        """What the {words} of a statement are on this database."""
        instants = ("due_at", "created_at", "scheduled_for", "run_at", "next_fire_at", "boundary",
                    "last_fired_at", "fired_at", "acquired_at", "expires_at", "starts_at",
                    "ends_at")  # fmt: skip
        lapses = cls.plus(cls.now, "visibility_timeout")
        lately, soon = (cls.plus(cls.now, f"%({name})s") for name in ("lately", "soon"))
        first_due = cls.first_due.replace("MIN(due_at)", cls.plain("MIN(due_at)"))
        same = ("now", "enabled", "insert_new", "or_nothing", "live_on_mysql", "limit",
                "oldest_first", "jobs_by_id", "delete_jobs")  # fmt: skip
        return {
            **{name: getattr(cls, name) for name in same},
            **{name: cls.plain(name) for name in instants},
            "minute": cls.start_of("minute", cls.now),
            "or_add": cls.or_add,
            "first_due": first_due,
            "first_due_soon": first_due.replace(
                "due_at IS NOT NULL", f"due_at BETWEEN {lately} AND {soon}"
            ),
            "lately": lately,
            "min_next_fire_at": cls.plain("MIN(next_fire_at)"),
            "plain_now": cls.plain(cls.now),
            "claim_lapses": lapses,
            "lapses_at": cls.plain(lapses),
            "extended": cls.plus(cls.now, "%(extend)s"),
            "later": cls.plus(cls.now, "%(delay)s"),
            "life_later": cls.plus(cls.now, "%(life)s"),
            "lock_lapses": cls.plus(cls.now, "%(ttl)s"),
            "payload": cls.json_text("payload"),
            "picked": "{picked}",
        }

    @classmethod
    @cache
    def spell(cls, template: str) -> str:
        """A statement in this database's words; doubled braces are left for the next format."""
        return template.format(**cls.words())

    def execute(self, text: str, params: Params) -> int:
        """Run one statement; how many rows it matched."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, self.stamped(params))
            return cursor.rowcount

    def query(self, text: str, params: Params) -> list[tuple]:
        """Run one statement; its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, self.stamped(params))
            return list(cursor.fetchall())

    def query_each(
        self, text: str, queues: Sequence[str], at_once: int, params: Params
    ) -> list[tuple]:
        """Run a query about one queue for each of them, ``at_once`` in a statement; all rows."""
        rows: list[tuple] = []
        for start in range(0, len(queues), at_once):
            some = queues[start : start + at_once]
            joined = " UNION ALL ".join(_numbered(text, ["queue"], n) for n in range(len(some)))
            rows += self.query(joined, params | {f"queue_{n}": q for n, q in enumerate(some)})
        return rows

    def stamped(self, params: Params) -> Params:
        """``params`` with the clock, where the clock is a parameter."""
        return params

    def in_callers_transaction(self) -> bool:
        """Whether a statement now would join a transaction that is not ours to end or retry."""
        connection = self.connection
        return connection.in_atomic_block or not connection.get_autocommit()

    def own_connection(self) -> None:
        """For loops: let each statement commit by itself, also where settings say otherwise."""
        connection = self.connection
        if not connection.in_atomic_block and not connection.get_autocommit():
            connection.set_autocommit(True)

    def settle(self, verb: Callable[[], Result]) -> Result:
        """Run ``verb``, again after a conflict, unless the caller's transaction is at stake."""
        if self.in_callers_transaction():
            return verb()
        patience = time.monotonic() + SLOW_SECONDS
        for tries in itertools.count(1):
            try:
                return verb()
            except DatabaseError as exc:
                most = CONFLICT_TRIES if time.monotonic() < patience else SLOW_CONFLICT_TRIES
                if tries >= most or not self.is_conflict(exc.__cause__ or exc):
                    raise
            time.sleep(random.uniform(0, 0.01) * 2 ** min(tries, 5))

    def change(self, template: str, params: Params) -> bool:
        """Run one statement that changes one row; whether it matched."""
        text = self.spell(template)
        return self.settle(lambda: self.execute(text, params)) > 0

    # -- jobs: inserting ------------------------------------------------------------------------

    def insert(self, job: NewJob, besides: str = "") -> int:
        """Insert one job; its id. ``besides``: what else the INSERT returns, where it can."""
        shape, params = self._stamps(job)
        text = _insert_text(type(self), shape, (), 1)
        return self.settle(lambda: self.insert_rows(text, params, 1, besides))[0]

    def insert_many(self, job: NewJob, payloads: Sequence[str], besides: str = "") -> list[int]:
        """Insert a copy of ``job`` with each payload, all or none; their ids, in order."""
        chunks = [[{"payload": text} for text in chunk] for chunk in _chunks(payloads)]

        def insert_all() -> list[int]:
            with transaction.atomic(self.alias):
                return [id for chunk in chunks for id in self._insert_copies(job, chunk, besides)]

        if len(chunks) > 1:
            return self.settle(insert_all)
        return self.settle(lambda: self._insert_copies(job, chunks[0], besides))

    def insert_boundaries(
        self, job: NewJob, starts: Sequence[tuple[datetime, datetime]], besides: str = ""
    ) -> list[int]:
        """Insert a copy of ``job`` for each boundary and when it is to run; their ids, in order."""
        ids: list[int] = []
        for chunk in _chunks([job.payload] * len(starts)):
            some = starts[len(ids) : len(ids) + len(chunk)]
            copies = [
                self._run_at(job, run_at) | {"scheduled_for": self.write(at)} for at, run_at in some
            ]
            ids += self._insert_copies(
                job._replace(start=Start(run_at=some[0][1])), copies, besides
            )
        return ids

    def _insert_copies(self, job: NewJob, copies: list[Params], besides: str) -> list[int]:
        shape, params = self._stamps(job)
        varying = tuple(copies[0])
        text = _insert_text(type(self), shape, varying, len(copies))
        shared = {name: value for name, value in params.items() if name not in varying}
        numbered = {f"{name}_{n}": copy[name] for n, copy in enumerate(copies) for name in varying}
        return self.insert_rows(text, shared | numbered, len(copies), besides)

    def _stamps(self, job: NewJob) -> tuple[Shape, Params]:
        options, start = job.options, job.start
        params = {
            "queue": job.queue,
            "priority": options.priority,
            "payload": job.payload,
            "max_attempts": options.max_attempts,
            "visibility_timeout": options.visibility_timeout,
            "backoff": options.backoff,
            "schedule": job.schedule,
            "scheduled_for": None,
        }
        if start.run_at is not None:
            return Shape(at=True), params | self._run_at(job, start.run_at)
        if options.expires_in is not None:
            params["life"] = start.delay + options.expires_in
        if start.delay:
            params["delay"] = start.delay
        return Shape(later=start.delay > 0, expires=options.expires_in is not None), params

    def _run_at(self, job: NewJob, at: datetime) -> Params:
        life = job.options.expires_in
        expires_at = None if life is None else self.write(at + timedelta(seconds=life))
        return {"run_at": self.write(at), "expires_at": expires_at}

    # -- jobs: claiming -------------------------------------------------------------------------

    def claim(
        self, queue: str, worker_id: str, token: int, limit: int, lately: float | None = None
    ) -> list[tuple]:
        """Claim up to ``limit`` ready jobs; for each what ``CLAIMED`` names, in no order.

        ``lately``: only of those that were to run within the last so many seconds.
        """
        params = {"queue": queue, "worker_id": worker_id, "token": token, "limit": limit}
        rows, pick = READY, CLAIM_PICK
        if lately is not None:
            rows, pick, params["lately"] = READY_LATELY, CLAIM_PICK_LATELY, -lately
        return self.settle(lambda: self._move(rows, pick, CLAIM, TO_CLAIM, CLAIMED, params))

    def sweep(self, queue: str, lately: float | None = None) -> Swept:
        """What time has changed: up to ``SWEEP_ROWS`` rows become ready, or die.

        ``lately``: only of those that were due within the last so many seconds.
        """
        params: Params = {"queue": queue, "limit": SWEEP_ROWS}
        due, pick, before = DUE_JOBS, SWEEP_PICK, f"id, {SWEPT_STATE}"
        if lately is not None:
            due, pick, params["lately"] = DUE_LATELY, SWEEP_PICK_LATELY, -lately
        rows = self.settle(lambda: self._move(due, pick, SWEEP, before, "id, state", params))
        states = [state for _, state in rows]
        dead = [id for id, state in rows if state == "dead"]
        return Swept(states.count("ready"), dead, len(rows) == SWEEP_ROWS)

    def _move(
        self, rows: str, pick: str, change: str, before: str, after: str, params: Params
    ) -> list[tuple]:
        if not self.worth_locking(self.spell(rows), params):
            return []
        return self.move(*map(self.spell, (pick, change, before, after)), params)

    def repair(self, queue: str) -> int:
        """Make due the live rows that lost their due_at; how many."""
        return sum(self._repair(queue, state) for state in ("running", "scheduled"))

    def _repair(self, queue: str, state: str) -> int:
        rows = self.spell(UNDATED).format(state=state)
        params = {"queue": queue}
        if not self.settle(lambda: self.worth_locking(rows, params)):
            return 0
        text = f"UPDATE {rows.replace('WHERE', f'SET due_at = {self.now} WHERE', 1)}"
        return self.settle(lambda: self.execute(text, params))

    def peek(self, queues: Sequence[str]) -> Peek:
        """Whether a job of any of the queues is ready, and how long until time changes one."""
        return self._peek(PEEK, queues, {})

    def peek_lately(self, queues: Sequence[str], lately: float, soon: float) -> Peek:
        """Likewise of what was to run, or due, within the last ``lately`` seconds, and no further
        ahead than ``soon``."""
        seen = self._peek(PEEK_LATELY, queues, {"lately": -lately, "soon": soon})
        return Peek(seen.ready, soon if seen.seconds is None else seen.seconds)

    def _peek(self, template: str, queues: Sequence[str], params: Params) -> Peek:
        rows = self.query_each(self.spell(template), queues, PEEKS_PER_STATEMENT, params)
        ready = any(row[0] for row in rows)
        seen = [(self.read(at), self.read(now)) for _, at, now in rows]
        due = [(at - now).total_seconds() for at, now in seen if at is not None]
        return Peek(ready, max(0.0, min(due)) if due else None)

    # -- what people do -------------------------------------------------------------------------

    def change_these(
        self, change: str, ids: Sequence[int], which: str, params: Params, besides: str = ""
    ) -> list[int]:
        """Change those of the jobs that are of ``which``, and that nobody has locked.

        ``besides``: what else the statement returns of each, where it can.
        """
        rows = THESE.format(which=which)
        changed: list[int] = []
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            some = ", ".join(map(str, ids[start : start + IDS_PER_STATEMENT]))
            among = self.spell(rows).format(ids=some)
            moved = self.settle(
                lambda among=among: self._change_these(change, among, params, besides)
            )
            changed += [row[0] for row in moved]
        return changed

    def _change_these(self, change: str, among: str, params: Params, besides: str) -> list[tuple]:
        if not self.worth_locking(among, params):
            return []
        pick = f"SELECT {{picked}} FROM {among}"
        return self.move(pick, self.spell(change), "id", f"id{besides}", params)

    def states_of(self, ids: Sequence[int]) -> dict[int, str]:
        """The states of those of the jobs that there are."""
        states: dict[int, str] = {}
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            some = ", ".join(map(str, ids[start : start + IDS_PER_STATEMENT]))
            states |= dict(self.query(self.spell(STATES_OF).format(ids=some), {}))
        return states

    def last_id(self) -> int:
        """The largest id of a job."""
        return self.query("SELECT MAX(id) FROM django_alkstore_job", {})[0][0] or 0

    def window(self, after: int, limit: int, which: str, params: Params) -> list[tuple]:
        """The next jobs by id, and of each whether it is one of ``which``."""
        text = self.spell(WINDOW).format(which=self.spell(which))
        return self.query(text, params | {"after": after, "limit": limit})

    # -- jobs: writing back, fenced -------------------------------------------------------------

    def ack(self, token: int, ids: Sequence[int]) -> int:
        """Delete claimed jobs that are done; how many were still ours."""
        return self._change_ours(ACK, token, ids)

    def keep(self, token: int, ids: Sequence[int]) -> int:
        """Mark claimed jobs as done; how many were still ours."""
        return self._change_ours(KEEP, token, ids)

    def release(self, token: int, ids: Sequence[int]) -> int:
        """Give claimed jobs back with their attempt; how many were still ours."""
        return self._change_ours(RELEASE, token, ids)

    def _change_ours(self, template: str, token: int, ids: Sequence[int]) -> int:
        params = {"token": token}
        matched = 0
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            some = ", ".join(map(str, ids[start : start + IDS_PER_STATEMENT]))
            text = self.spell(template).format(ids=some)
            matched += self.settle(lambda text=text: self.execute(text, params))
        return matched

    def fail(self, id: int, token: int, error: str | None, traceback: str | None) -> bool:
        """Let the job die."""
        params = {"id": id, "token": token, "error": error, "traceback": traceback}
        return self.change(FAIL, params)

    def retry(
        self, id: int, token: int, delay: float, error: str | None, traceback: str | None
    ) -> bool:
        """Give the job back, to be ready ``delay`` seconds from now."""
        params = {"id": id, "token": token, "error": error, "traceback": traceback}
        if delay == 0:
            return self.change(RETRY_NOW, params)
        return self.change(RETRY_LATER, {**params, "delay": delay})

    def heartbeat(self, id: int, token: int, extend: float) -> Any:
        """Let the claim lapse ``extend`` seconds from now; when that is, for ``read``, or None."""
        if not self.change(HEARTBEAT, {"id": id, "token": token, "extend": extend}):
            return None
        lapses = self.spell(LAPSES)
        rows = self.settle(lambda: self.query(lapses, {"id": id, "token": token}))
        return rows[0][0] if rows else None

    def cancel(self, queue: str, id: int) -> bool:
        """Let a job that nobody has claimed die."""
        return self.change(CANCEL, {"queue": queue, "id": id})

    # -- what workers count -----------------------------------------------------------------------

    def add_counts(self, queue: str, figures: Mapping[str, int]) -> None:
        """Add to the row of the queue and this minute, and to that of its total."""
        self.change(COUNT_ADD, {"queue": queue, "total": self.write(TOTAL), **figures})

    # -- locks ----------------------------------------------------------------------------------

    def take_lock(self, name: str, owner: str, ttl: float) -> int | None:
        """Take a lock that is free or has lapsed, waiting for nobody; its token, or None."""
        params = {"name": name, "owner": owner, "ttl": ttl}
        return self.settle(lambda: self._take_lock(params))

    def _take_lock(self, params: Params) -> int | None:
        if not self.query("SELECT 1 FROM django_alkstore_lock WHERE name = %(name)s", params):
            return 1 if self.execute(self.spell(LOCK_ADD), params) > 0 else None
        before, after = "id, token + 1", "id, token"
        rows = self._move(LOCK_FREE, LOCK_PICK, LOCK_TAKE, before, after, params)
        return rows[0][1] if rows else None

    def renew_lock(self, name: str, owner: str, token: int, ttl: float) -> bool:
        """Let the lock lapse ``ttl`` seconds from now, if nobody else has taken it."""
        return self.change(LOCK_RENEW, {"name": name, "owner": owner, "token": token, "ttl": ttl})

    def release_lock(self, name: str, owner: str, token: int) -> bool:
        """Free the lock, if nobody else has taken it."""
        return self.change(LOCK_RELEASE, {"name": name, "owner": owner, "token": token})

    # -- schedules: for the tick, inside its transaction ----------------------------------------

    def schedules_due(
        self, until: datetime, limit: int, without: Sequence[int]
    ) -> list[ScheduleRow]:
        """Lock and return due schedules, oldest first, but for those that somebody is editing."""
        which = f"{DUE} AND NOT {self.spell(WAITS)} {_without(without)}"
        return self._schedules(which, self.write(until), limit)

    def schedules_undated(self, limit: int, without: Sequence[int]) -> list[ScheduleRow]:
        """Likewise those without a next boundary, as an import leaves them."""
        which = f"{NO_BOUNDARY} AND ended_at IS NULL {_without(without)}"
        return self._schedules(which, None, limit)

    def schedule_named(self, name: str) -> ScheduleRow | None:
        """A schedule, enabled or not, without a lock."""
        rows = self.query(self.spell(SCHEDULE_NAMED), {"name": name})
        return ScheduleRow(*rows[0]) if rows else None

    def schedules_among(self, ids: Sequence[int]) -> list[ScheduleRow]:
        """Likewise those of the ids."""
        if not ids:
            return []
        return self._schedules(f"id IN ({', '.join(map(str, ids))})", None, len(ids))

    def _schedules(self, which: str, until: Any, limit: int) -> list[ScheduleRow]:
        text = self.spell(SCHEDULES).format(which=which)
        rows = self.query(text + self.skip_locked, {"until": until, "limit": limit})
        return [ScheduleRow(*row) for row in rows]

    def advance(self, row: ScheduleRow, next: datetime | None, fired: Sequence[datetime]) -> bool:
        """Move a schedule to its next boundary, unless somebody else has since.

        ``next``: None if it has ended. ``fired``: the boundaries that it fires on the way.
        """
        seen = NO_BOUNDARY if row.seen is None else "next_fire_at = %(seen)s"
        ended = self.now if next is None else "NULL"
        text = self.spell(SCHEDULE_ADVANCE).format(seen=seen, ended=ended)
        last = self.write(fired[-1]) if fired else None
        params = {"id": row.id, "next": self.write(next), "last": last, "fires": len(fired)}
        return self.execute(text, {**params, "seen": self.rewrite(row.seen)}) > 0

    def last_job_lives(self, row: ScheduleRow) -> bool:
        """Whether the last job of a schedule has not come to an end.

        To be asked once the row is locked, by a statement of its own: one that has waited for another
        tick to commit may see the row as it is by then and the jobs as they were before.
        """
        return bool(self.query(self.spell(LAST_LIVES), {"id": row.id}))

    def next_boundary(self, after: datetime, without: Sequence[int]) -> datetime | None:
        """The soonest boundary of the enabled schedules after an instant."""
        text = self.spell(SCHEDULE_NEXT).format(without=_without(without))
        return self.read(self.query(text, {"after": self.write(after)})[0][0])

    def fired(self, schedule: str, boundaries: Sequence[datetime]) -> set[datetime]:
        """Which of the boundaries the ledger has."""
        names = [f"at_{n}" for n in range(len(boundaries))]
        text = self.spell(FIRED).format(boundaries=", ".join(f"%({name})s" for name in names))
        params = dict(zip(names, map(self.write, boundaries), strict=True))
        return {self.read(at) for (at,) in self.query(text, {**params, "schedule": schedule})}


class Returning(Engine):
    """Databases whose statements return rows: a move is one statement."""

    def move(self, pick: str, change: str, before: str, after: str, params: Params) -> list[tuple]:
        # MATERIALIZED: inlined, PostgreSQL may run the SELECT again and exceed its LIMIT.
        picked = pick.format(picked="id") + self.skip_locked
        return self.query(
            f"WITH picked AS MATERIALIZED ({picked})"
            f" {change} WHERE id IN (SELECT id FROM picked) RETURNING {after}",
            params,
        )

    def insert_rows(self, text: str, params: Params, count: int, besides: str) -> list[int]:
        return sorted(row[0] for row in self.query(f"{text} RETURNING id{besides}", params))


class TwoStep(Engine):
    """Databases without that: rows are locked and read, then changed, in a short transaction."""

    def move(self, pick: str, change: str, before: str, after: str, params: Params) -> list[tuple]:
        with transaction.atomic(self.alias):
            rows = self.query(pick.format(picked=before) + self.skip_locked, params)
            if rows:
                ids = ", ".join(str(row[0]) for row in rows)
                self.execute(f"{change} WHERE id IN ({ids})", params)
        return rows


class PostgreSQL(Returning):
    now = "STATEMENT_TIMESTAMP()"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    @staticmethod
    def plus(instant: str, seconds: str) -> str:
        return f"({instant} + {seconds} * INTERVAL '1 second')"

    @staticmethod
    def plain(instant: str) -> str:
        held = "BETWEEN '0001-01-02' AND '9999-12-31 23:59:59.999999+00'"  # not 'infinity'
        return f"(CASE WHEN {instant} {held} THEN {instant} AT TIME ZONE 'UTC' END)"

    @staticmethod
    def start_of(unit: str, instant: str) -> str:
        return f"DATE_TRUNC('{unit}', {instant}, 'UTC')"

    @staticmethod
    def json_text(column: str) -> str:
        return f"{column}::text"

    @staticmethod
    def is_conflict(error: BaseException) -> bool:
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        return code in ("40001", "40P01")

    def clock(self) -> datetime:
        return self.read(self.query(f"SELECT {self.plain(self.now)}", {})[0][0])

    def write(self, instant: datetime | None) -> Any:
        return instant

    def query_each(
        self, text: str, queues: Sequence[str], at_once: int, params: Params
    ) -> list[tuple]:
        # One plan for all: to plan for each of fifty queues takes ten times as long as to run it.
        if not queues:
            return []
        names = {f"queue_{n}": name for n, name in enumerate(queues)}
        listed = ", ".join(f"(%({name})s)" for name in names)
        each = text.replace("%(queue)s", "names.queue")
        return self.query(
            f"SELECT each.* FROM (VALUES {listed}) AS names (queue)"
            f" CROSS JOIN LATERAL ({each}) AS each",
            params | names,
        )

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        with transaction.atomic(self.alias, savepoint=False):
            self.query("SELECT set_config('jit', 'off', TRUE)", {})
            yield

    def limit_transaction(self, seconds: float) -> None:
        text = """SELECT set_config('idle_in_transaction_session_timeout', %(ms)s, TRUE),
            set_config('lock_timeout', %(ms)s, TRUE)"""
        self.query(text, {"ms": str(int(seconds * 1000))})


class SQLite(Returning):
    now = "%(now)s"
    # Both ways in which versions of Django write the condition of the partial index.
    enabled = "enabled AND enabled = 1"

    @staticmethod
    def plus(instant: str, seconds: str) -> str:
        return f"strftime('%%Y-%%m-%%d %%H:%%M:%%f', {instant}, {seconds} || ' seconds')"

    @staticmethod
    def plain(instant: str) -> str:
        return f"({instant} || '')"  # an expression has no declared type for Django to convert

    @staticmethod
    def start_of(unit: str, instant: str) -> str:
        length, rest = {"minute": (16, ":00"), "hour": (13, ":00:00")}[unit]
        return f"(SUBSTR({instant}, 1, {length}) || '{rest}')"

    @staticmethod
    def is_conflict(error: BaseException) -> bool:
        code = getattr(error, "sqlite_errorcode", None)  # Python 3.11 and newer
        if code is None:
            return "is locked" in str(error)
        return code & 0xFF in (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED

    def clock(self) -> datetime:
        return utc_now()

    def read(self, value: Any) -> datetime | None:
        try:
            return value and datetime.fromisoformat(value).replace(tzinfo=timezone.utc)
        except ValueError:
            return None

    def rewrite(self, value: Any) -> Any:
        return value  # instants are compared as text, and another hand may have written this one

    def stamped(self, params: Params) -> Params:
        return {**params, "now": utc_now().isoformat(" ", "microseconds")[:26]}

    def worth_locking(self, rows: str, params: Params) -> bool:
        # In the caller's transaction a read first would only invite SQLITE_BUSY_SNAPSHOT.
        return self.in_callers_transaction() or bool(
            self.query(f"SELECT 1 FROM {rows} LIMIT 1", params)
        )

    def faults(self) -> list[str]:
        options = self.connection.settings_dict["OPTIONS"]
        found = []
        if str(options.get("transaction_mode")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            found.append("immediate")
        if float(options.get("timeout", 5)) < SHORTEST_TIMEOUT:
            found.append("timeout")
        if self.query("PRAGMA journal_mode", {})[0][0] not in ("wal", "memory"):
            found.append("wal")
        return found

    def insert_rows(self, text: str, params: Params, count: int, besides: str) -> list[int]:
        if count > 1:
            return super().insert_rows(text, params, count, besides)
        with self.connection.cursor() as cursor:
            cursor.execute(text, self.stamped(params))
            return [cursor.lastrowid]


class OldSQLite(TwoStep, SQLite):
    """SQLite before 3.35, which Django still supports: it has no RETURNING."""

    def insert_rows(self, text: str, params: Params, count: int, besides: str) -> list[int]:
        with self.connection.cursor() as cursor:
            cursor.execute(text, self.stamped(params))
            last = cursor.lastrowid  # one writer at a time: the ids have no gaps
        return list(range(last - count + 1, last + 1))


class MySQL(TwoStep):
    now = "UTC_TIMESTAMP(6)"
    enabled = "enabled = 1"
    insert_new = "INSERT IGNORE"
    or_nothing = ""
    live_on_mysql = f"{LIVE} AND "  # its index has the state before due_at
    # Where many ids are most of a table, it would rather walk all of it, and lock what it meets.
    jobs_by_id = "django_alkstore_job FORCE INDEX (PRIMARY)"
    delete_jobs = f"DELETE django_alkstore_job FROM {jobs_by_id}"
    first_due = "SELECT MIN(at) FROM ({}) AS firsts".format(
        " UNION ALL ".join(
            f"""(SELECT due_at AS at FROM django_alkstore_job WHERE queue = %(queue)s
            AND state = '{state}' AND due_at IS NOT NULL ORDER BY due_at LIMIT 1)"""
            for state in ("ready", "scheduled", "running")
        )
    )
    limit = "%(limit)s"
    oldest_first = f"LIMIT {limit}"  # its index would have to be merged from three states
    or_add = "ON DUPLICATE KEY UPDATE " + ", ".join(
        f"{name} = {name} + VALUES({name})" for name in COUNTED
    )

    @property
    def skip_locked(self) -> str:
        if self.connection.features.has_select_for_update_skip_locked:
            return " FOR UPDATE SKIP LOCKED"
        return " FOR UPDATE"

    @staticmethod
    def plus(instant: str, seconds: str) -> str:
        micros = f"CAST(ROUND({seconds} * 1000000) AS SIGNED)"
        return f"DATE_ADD({instant}, INTERVAL {micros} MICROSECOND)"

    @staticmethod
    def plain(instant: str) -> str:
        return instant

    @staticmethod
    def start_of(unit: str, instant: str) -> str:
        form = {"minute": "%%Y-%%m-%%d %%H:%%i:00", "hour": "%%Y-%%m-%%d %%H:00:00"}[unit]
        return f"CAST(DATE_FORMAT({instant}, '{form}') AS DATETIME)"

    @staticmethod
    def is_conflict(error: BaseException) -> bool:
        # Lock wait timeout, deadlock, and MariaDB's "record has changed since last read".
        return bool(error.args) and error.args[0] in (1205, 1213, 1020)

    def clock(self) -> datetime:
        return self.read(self.query(f"SELECT {self.now}", {})[0][0])

    def limit_transaction(self, seconds: float) -> None:
        limits = f"innodb_lock_wait_timeout = {max(1, int(seconds))}"
        if self.connection.mysql_is_mariadb:
            limits += f", idle_transaction_timeout = {max(1, int(seconds))}"
        self.execute(f"SET SESSION {limits}", {})

    def faults(self) -> list[str]:
        found = [] if settings.USE_TZ else ["local time"]
        charset = self.query("SELECT @@character_set_connection", {})[0][0]
        if charset != "utf8mb4" or self.query(MISSPELT_COLUMNS, {}):
            found.append("charset")
        return found

    def insert_rows(self, text: str, params: Params, count: int, besides: str) -> list[int]:
        if self.connection.features.can_return_rows_from_bulk_insert:
            return sorted(id for (id,) in self.query(f"{text} RETURNING id", params))
        with self.connection.cursor() as cursor:
            cursor.execute(text, params)
            first = cursor.lastrowid
            # InnoDB numbers the rows of one INSERT ... VALUES without gaps, by this step.
            cursor.execute("SELECT @@auto_increment_increment")
            step = cursor.fetchone()[0]
        return list(range(first, first + count * step, step))


_ENGINES = {"postgresql": PostgreSQL, "sqlite": SQLite, "mysql": MySQL}


@dataclass(frozen=True)
class Shape:
    """Which of the INSERT's variants: at once, later by a delay, or at an instant."""

    later: bool = False
    at: bool = False
    expires: bool = False


@lru_cache(maxsize=256)
def _insert_text(dialect: type[Engine], shape: Shape, varying: tuple[str, ...], rows: int) -> str:
    """The INSERT of ``rows`` rows that differ in the parameters ``varying``."""
    form = INSERT_AT if shape.at else INSERT_LATER if shape.later else INSERT_NOW
    expires_at = "%(expires_at)s" if shape.at else "{life_later}" if shape.expires else "NULL"
    row = INSERT_ROW
    for word, sql in {**form, "expires_at": expires_at}.items():
        row = row.replace(f"{{{word}}}", sql)
    row = dialect.spell(row.replace("{expires_at}", expires_at))
    return INSERT_COLUMNS + ", ".join(_numbered(row, varying, n) for n in range(rows))


def _numbered(row: str, varying: Sequence[str], n: int) -> str:
    for name in varying:
        row = row.replace(f"%({name})s", f"%({name}_{n})s")
    return row


def _chunks(payloads: Sequence[str]) -> Iterator[list[str]]:
    """Payloads by the statement: at most so many rows and, but for a single one, so much text."""
    chunk: list[str] = []
    size = 0
    for payload in payloads:
        if chunk and (len(chunk) == ROWS_PER_INSERT or size + len(payload) > TEXT_PER_INSERT):
            yield chunk
            chunk, size = [], 0
        chunk.append(payload)
        size += len(payload)
    if chunk:
        yield chunk


def _without(ids: Sequence[int]) -> str:
    return f"AND id NOT IN ({', '.join(map(str, ids))})" if ids else ""


def set_bytewise_names(*tables: str) -> Callable[[Any, Any], None]:
    """For migrations: let tables on MySQL hold any text, and compare names byte for byte."""

    def convert(apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.vendor == "mysql":
            for table in tables:
                schema_editor.execute(
                    f"ALTER TABLE django_alkstore_{table}"
                    " CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                )

    return convert
