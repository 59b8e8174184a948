"""What is going on, for people and probes: reads alone, at a bounded cost however many rows there are.

A figure is counted along one index and up to ``COUNTED_UP_TO`` entries; one that stopped there is
in ``capped``, and is at least what it says. What waits for an instant (scheduled, running, lapsed)
is counted among the queue's first so many, soonest first. Throughput is what workers have counted
(see ``counts``): by the clock's minutes and hours in UTC, the last of them not yet over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from . import conf, reads, registry, sql
from .declared import declared_plans, is_superseded
from .exceptions import AlreadyRegistered
from .names import SCHEDULER_LOCK, backing_queue, outbox_of, shown_name
from .options import YEARS

COUNTED_UP_TO = 10_000
SCHEDULES_SHOWN = 200
OLD_SECONDS = 300.0  # a job that has been ready for so long is worth a warning
LATE_SECONDS = 30.0  # and so is a schedule that is so late
MINUTES, HOURS = 60, 24
SUPERSEDED = (
    "The schedules that this code declares are older than others in use: if it is to stay, run "
    "alkstore_schedules sync."
)


@dataclass(frozen=True)
class Flow:
    """What workers did with a queue's jobs: in all, or in one minute or hour."""

    claimed: int = 0
    acked: int = 0
    retried: int = 0
    died: int = 0
    lost: int = 0

    @property
    def failed(self) -> int:
        return self.retried + self.died

    def __add__(self, other: Flow) -> Flow:
        return Flow(*(getattr(self, name) + getattr(other, name) for name in sql.COUNTED))


@dataclass(frozen=True)
class QueueStatus:
    """One queue or outbox. Ages and waits are in seconds; None where there is nothing to wait.

    ``overdue_seconds``: for how long a delay or a retry has been due, or a claim has lapsed, that
    only a worker's look can make ready."""

    name: str  # as people read it
    queue: str  # as rows have it
    kind: str  # "queue" or "outbox"
    ready: int = 0
    oldest_ready_seconds: float | None = None
    scheduled: int = 0
    next_due_seconds: float | None = None
    overdue_seconds: float | None = None
    running: int = 0
    lapsed: int = 0
    dead: int = 0
    dead_last_hour: int = 0
    capped: frozenset[str] = frozenset()  # the names of the figures that are "at least"
    minutes: Sequence[Flow] = ()
    hours: Sequence[Flow] = ()

    @property
    def ready_capped(self) -> bool:
        return "ready" in self.capped

    @property
    def has_live_rows(self) -> bool:
        return self.ready > 0 or self.scheduled > 0 or self.running > 0

    @property
    def per_minute(self) -> list[tuple[int, int]]:
        """(acked, failed) in each of the last 60 minutes."""
        return [(flow.acked, flow.failed) for flow in self.minutes]

    @property
    def per_hour(self) -> list[tuple[int, int]]:
        """(acked, failed) in each of the last 24 hours."""
        return [(flow.acked, flow.failed) for flow in self.hours]

    @property
    def done_last_hour(self) -> int:
        return sum(flow.acked for flow in self.minutes)

    @property
    def failed_last_hour(self) -> int:
        return sum(flow.failed for flow in self.minutes)

    @property
    def done_last_day(self) -> int:
        return sum(flow.acked for flow in self.hours)

    @property
    def failed_last_day(self) -> int:
        return sum(flow.failed for flow in self.hours)

    def shown(self, figure: str) -> str:
        """A count as people read it: "10,000+" where it was not counted to the end."""
        return f"{getattr(self, figure):,}" + ("+" if figure in self.capped else "")


@dataclass(frozen=True)
class ScheduleStatus:
    """One schedule. ``late_seconds``: how overdue the next boundary is, 0 if it is not, or if it
    ``waits`` for the last job to end;
    ``fired_late_seconds``: how long after its boundary the last fire was; ``skipped``: boundaries
    that were dropped in the last day."""

    name: str
    spec: str
    queue: str
    enabled: bool
    next_fire_at: datetime | None
    last_fired_at: datetime | None
    late_seconds: float
    fired_late_seconds: float | None
    skipped: int
    waits: bool = False
    ended: bool = False


@dataclass(frozen=True)
class LeaderStatus:
    """Who leads the scheduler, since when and until when; ``lapsed``: or led, and is gone."""

    owner: str
    age_seconds: float
    expires_in_seconds: float

    @property
    def lapsed(self) -> bool:
        return self.expires_in_seconds <= 0


@dataclass(frozen=True)
class Snapshot:
    """What there was at one moment; ``trouble``: what kept it from being told in full."""

    queues: list[QueueStatus]
    schedules: list[ScheduleStatus]
    leader: LeaderStatus | None
    at: datetime
    trouble: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        """What a person should look at first: of what is in here, and of nothing else."""
        died = [
            f"{status.name}: {status.shown('dead_last_hour')} dead in the last hour."
            for status in self.queues
            if status.dead_last_hour
        ]
        return [*self.trouble, *problems(self), *died]


def snapshot(using: str | None = None) -> Snapshot:
    """Look at everything. Sends about ten statements, whatever number of queues there is."""
    engine = sql.engine(using)
    now = engine.clock()
    trouble = _declarations(engine)
    queues = _queues(engine, now)
    schedules = _schedules(engine, now)
    leader = _leader(engine, now)
    return Snapshot(queues, schedules, leader, now, trouble)


def as_plain(seen: Snapshot) -> dict[str, Any]:
    """A snapshot as what JSON can hold. A name in a queue's "capped" is a figure that is "at
    least"."""
    rates = ("done_last_hour", "done_last_day", "failed_last_hour", "failed_last_day")
    plain = asdict(seen) | {"warnings": seen.warnings}
    del plain["trouble"]  # is among the warnings
    for status, queue in zip(seen.queues, plain["queues"], strict=True):
        del queue["minutes"], queue["hours"]
        queue["capped"] = sorted(status.capped)
        queue |= {name: getattr(status, name) for name in rates}
    return plain


def is_well(using: str | None = None) -> str | None:
    """None, or the reason why not: what a probe can ask often, at three short statements."""
    engine = sql.engine(using)
    now = engine.clock()
    due_by = now - timedelta(seconds=LATE_SECONDS)
    if not reads.has_schedules_due(engine, due_by):
        return None
    leader = _leader(engine, now)
    if leader is None or leader.lapsed:
        return "no scheduler leads, and schedules are due"
    return "schedules are late"


def _declarations(engine: sql.Engine) -> list[str]:
    """Import the jobs modules, which say what outboxes are served and what schedules there are; what
    is wrong with that."""
    try:
        plans = declared_plans()
    except AlreadyRegistered as exc:
        return [f"A schedule is declared twice: {exc}"]
    except Exception as exc:
        return [f"A jobs module cannot be imported: {type(exc).__name__}: {exc}"]
    if is_superseded(engine, plans):
        return [SUPERSEDED]
    return []


# -- queues -----------------------------------------------------------------------------------


def _queues(engine: sql.Engine, now: datetime) -> list[QueueStatus]:
    names = _names(engine)
    figures = reads.figures(engine, names, now - timedelta(hours=1), COUNTED_UP_TO + 1)
    minutes = _flows(engine, names, now, "minute", timedelta(minutes=1), MINUTES)
    hours = _flows(engine, names, now, "hour", timedelta(hours=1), HOURS)
    found = [_queue_status(engine, now, row, minutes[row[0]], hours[row[0]]) for row in figures]
    return sorted(found, key=lambda status: (status.kind, status.name))


def _names(engine: sql.Engine) -> list[str]:
    """Those that have rows, have had some lately, are set up, or are served."""
    settings = conf.current()
    outboxes = [*settings.OUTBOXES, *registry.deliveries.names()]
    return sorted(
        {
            *reads.queue_names(engine),
            *reads.counted_queues(engine),
            *settings.QUEUES,
            *registry.handlers.names(),
            *map(backing_queue, outboxes),
        }
    )


def _queue_status(
    engine: sql.Engine, now: datetime, row: tuple, minutes: Sequence[Flow], hours: Sequence[Flow]
) -> QueueStatus:
    (queue, ready, oldest, scheduled, next_due, running, lapsed, first_due, seen, dead,
     dead_lately) = row  # fmt: skip
    counts = {
        "ready": ready, "scheduled": scheduled, "running": running, "lapsed": lapsed,
        "dead": dead, "dead_last_hour": dead_lately,
    }  # fmt: skip
    counts = {name: int(count or 0) for name, count in counts.items()}
    capped = {name for name, count in counts.items() if count > COUNTED_UP_TO}
    if seen > COUNTED_UP_TO:
        capped |= {"scheduled", "running"}
    return QueueStatus(
        name=shown_name(queue),
        queue=queue,
        kind="queue" if outbox_of(queue) is None else "outbox",
        oldest_ready_seconds=_seconds_between(_instant(engine, oldest), now),
        next_due_seconds=_seconds_between(now, _instant(engine, next_due)),
        overdue_seconds=_seconds_between(_instant(engine, first_due), now) or None,
        capped=frozenset(capped),
        minutes=minutes,
        hours=hours,
        **{name: min(count, COUNTED_UP_TO) for name, count in counts.items()},
    )


def _instant(engine: sql.Engine, value: Any) -> datetime | None:
    """None also for one far beyond every clock: it stands for never."""
    at = engine.read(value)
    return at if at is not None and at.year in YEARS else None


def _seconds_between(earlier: datetime | None, later: datetime | None) -> float | None:
    if earlier is None or later is None:
        return None
    return max(0.0, (later - earlier).total_seconds())


def _flows(
    engine: sql.Engine, names: Sequence[str], now: datetime, unit: str, step: timedelta, steps: int
) -> dict[str, list[Flow]]:
    """By queue, the last ``steps`` minutes or hours, the oldest first."""
    last = now.replace(second=0, microsecond=0, **({"minute": 0} if unit == "hour" else {}))
    first = last - (steps - 1) * step
    flows: dict[str, list[Flow]] = defaultdict(lambda: [Flow()] * steps)
    for queue, bucket, *figures in reads.counts(engine, names, first, unit):
        at = (engine.read(bucket) - first) // step
        if 0 <= at < steps:  # a host whose clock is fast may have counted in the future
            flows[queue][at] = Flow(*map(int, figures))
    return flows


# -- schedules --------------------------------------------------------------------------------


def _schedules(engine: sql.Engine, now: datetime) -> list[ScheduleStatus]:
    rows = reads.schedules_shown(engine, SCHEDULES_SHOWN)
    skipped = reads.skipped(engine, now - timedelta(days=1)) if rows else {}
    return [_schedule_status(engine, now, row, skipped) for row in rows]


def _schedule_status(
    engine: sql.Engine, now: datetime, row: tuple, skipped: dict[str, int]
) -> ScheduleStatus:
    name, spec, queue, enabled, next_fire_at, last_fired_at, fired_at, waits, ended = row
    boundary, last = _instant(engine, next_fire_at), _instant(engine, last_fired_at)
    return ScheduleStatus(
        name=name,
        spec=spec,
        queue=queue,
        enabled=bool(enabled),
        next_fire_at=boundary,
        last_fired_at=last,
        late_seconds=(_seconds_between(boundary, now) or 0.0) if enabled and not waits else 0.0,
        fired_late_seconds=_seconds_between(last, engine.read(fired_at)),
        skipped=int(skipped.get(name, 0)),
        waits=bool(waits),
        ended=bool(ended),
    )


def _leader(engine: sql.Engine, now: datetime) -> LeaderStatus | None:
    lease = reads.lease(engine, SCHEDULER_LOCK)
    if lease is None:
        return None
    owner, since, until = lease
    ends = engine.read(until)
    left = 0.0 if ends is None else (ends - now).total_seconds()
    return LeaderStatus(owner, _seconds_between(_instant(engine, since), now) or 0.0, left)


# -- what to look at first ----------------------------------------------------------------------


def problems(
    seen: Snapshot, max_age: float = OLD_SECONDS, max_dead: int | None = None
) -> list[str]:
    """What a probe is to report: jobs that wait for too long, or for ever; schedules that are not
    fired; and, with ``max_dead``, more dead jobs in a queue than that."""
    found = [text for status in seen.queues for text in _waiting(status, max_age)]
    found += _schedule_warnings(seen.schedules, seen.leader)
    if max_dead is not None:
        found += [
            f"{status.name} has {status.shown('dead')} dead jobs, more than {max_dead:,}."
            for status in seen.queues
            if status.dead > max_dead
        ]
    return found


def _waiting(status: QueueStatus, max_age: float) -> Iterator[str]:
    outbox, name = outbox_of(status.queue), status.name
    oldest, overdue = status.oldest_ready_seconds, status.overdue_seconds
    if outbox is not None and status.has_live_rows and registry.deliveries.get(outbox) is None:
        yield f"{name} has messages and no delivery in any app's jobs.py: they wait."
    if oldest is not None and oldest > max_age:
        yield f"{name} has a job that has been ready for {shown_span(oldest)}: is a worker running?"
    elif overdue is not None and overdue > max_age:
        yield f"{name} has a job that has been due for {shown_span(overdue)}: is a worker running?"


def _schedule_warnings(
    schedules: Sequence[ScheduleStatus], leader: LeaderStatus | None
) -> Iterator[str]:
    late = [status for status in schedules if status.late_seconds > LATE_SECONDS]
    if not late:
        return
    worst = max(late, key=lambda status: status.late_seconds)
    if leader is None or leader.lapsed:
        yield f"No scheduler leads, and schedules are due ({len(late)}): is run_schedules running?"
    else:
        yield f"{len(late)} schedules are late, {worst.name} by {shown_span(worst.late_seconds)}."


def shown_span(seconds: float) -> str:
    """A length of time in its largest fitting unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
