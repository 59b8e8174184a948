"""The scheduler: one job per boundary, whatever number of schedulers run, pause or crash.

Three fences make that so. A tick runs in the transaction that renews the leader's lease, and the
lease row stays locked until it commits, so a runner that was paused cannot fire beside its
successor. A schedule moves to its next boundary by compare-and-set. And the ledger has one row per
boundary. The limit of the promise: boundaries beyond the first ``CATCH_UP`` that were missed are
skipped, and the ledger says how many.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error, InterfaceError, OperationalError, reset_queries, transaction
from django.db.models import Case, F, Value, When

from . import conf, payloads, signals, sql, wakeups
from .backoff import retry_delay
from .exceptions import InvalidOption, LeadershipLost, expected
from .locks import Lock
from .names import SCHEDULER_LOCK, valid_name
from .options import OPTIONS, checked
from .retention import Pruner
from .shutdown import Stoppable, StopToken
from .specs import Due, Spec, parse_spec

if TYPE_CHECKING:
    from .models import Schedule

logger = logging.getLogger(__name__)

CATCH_UP = 64
SCHEDULES_PER_TICK = 50
RENEWALS_PER_LEASE = 5
NOTICE_SECONDS = 2.0  # a schedule that was added or changed by any route is seen within this
SHORTEST_SLEEP = 0.05
LONGEST_PAUSE = 300.0


# -- registering --------------------------------------------------------------------------------


def schedule(
    name: str, spec: str, queue: str, payload: object = None, using: str | None = None,
    **options: Any,
) -> Schedule:  # fmt: skip
    """Create or replace the schedule ``name`` and return its row as stored.

    ``spec`` is ``@every <n><unit>`` or ``@cron <fields>``; ``options`` are those of ``Queue`` but
    for delay and run_at, and override the target queue's. With the spec unchanged the next boundary
    stays where it is; else it is counted from now. Raises InvalidName, ReservedName, InvalidSpec,
    InvalidPayload, InvalidOption or TypeError before any statement.
    """
    name, queue = valid_name("schedule", name), valid_name("queue", queue)
    parsed = parse_spec(spec)
    wanted = {"spec": str.__str__(spec), "queue": queue}
    wanted["payload"] = payloads.decode(payloads.encode(payload))
    wanted |= dict.fromkeys(OPTIONS) | checked(options)
    engine = sql.engine(using)
    try:
        row = engine.settle(_schedules(engine.alias).filter(name=name).first)
    except ValueError:  # its payload was made no JSON, and is to be replaced
        row = None
    if row is not None and _says(row, wanted):
        return row  # registering everything again at each deploy writes nothing
    return engine.settle(lambda: _put(engine, name, parsed, wanted))


def unschedule(name: str, using: str | None = None) -> bool:
    """Delete the schedule; False if there is none. Its ledger stays, and so do its jobs."""
    name = valid_name("schedule", name)
    engine = sql.engine(using)
    rows = _schedules(engine.alias).filter(name=name)
    deleted, _ = engine.settle(rows.delete)
    return deleted > 0


def pause_schedule(name: str, using: str | None = None) -> bool:
    """Fire it no more until it is resumed; False if there is none, or it is paused already."""
    engine = sql.engine(using)
    rows = _schedules(engine.alias).filter(name=name, enabled=True)
    changed = {"enabled": False, "updated_at": engine.clock()}
    return engine.settle(lambda: rows.update(**changed)) > 0


def resume_schedule(name: str, using: str | None = None) -> bool:
    """Fire it again, from its next boundary on: those that passed meanwhile are not made up for.

    False if there is none, or it is not paused. Raises InvalidSpec for a spec spoilt by hand.
    """
    engine = sql.engine(using)
    row = engine.schedule_named(name)
    if row is None:
        return False
    now = engine.clock()
    changed = {"enabled": True, "updated_at": now}
    if row.seen is not None:
        changed["next_fire_at"] = parse_spec(row.spec).due(engine.read(row.seen), now, 0).next
    rows = _schedules(engine.alias).filter(name=name, enabled=False)
    return engine.settle(lambda: rows.update(**changed)) > 0


def fire_now(name: str, by: str = "", using: str | None = None) -> int | None:
    """Enqueue one job of the schedule at once, paused or not; its id, or None if there is none.

    It stands for no boundary and moves none. ``by`` is who did it, for the ledger. Raises what
    ``schedule`` would for a row that was spoilt by hand.
    """
    scheduler = Scheduler(using)
    engine = scheduler.engine
    row = engine.schedule_named(name)
    if row is None:
        return None
    job_id = engine.settle(lambda: scheduler.fire_by_hand(row, by))
    signals.send(signals.schedule_fired, schedule=name, boundary=None, queue=row.queue,
                 job_id=job_id, by=by)  # fmt: skip
    return job_id


def _schedules(alias: str) -> Any:
    return apps.get_model("django_alkstore", "Schedule").objects.using(alias)


def _says(row: Schedule, wanted: Mapping[str, Any]) -> bool:
    """Whether the row is as wanted. Compared as JSON: to Python, True equals 1 and 1.0."""
    stored = {key: getattr(row, key) for key in wanted}
    return json.dumps(stored, sort_keys=True) == json.dumps(dict(wanted), sort_keys=True)


def _put(engine: sql.Engine, name: str, parsed: Spec, wanted: Mapping[str, Any]) -> Schedule:
    """Insert the row or change it, in one transaction; the row as stored."""
    now = engine.clock()
    first = parsed.first_after(now)
    rows = _schedules(engine.alias)
    new = rows.model(name=name, next_fire_at=first, created_at=now, updated_at=now, **wanted)
    with transaction.atomic(engine.alias):
        # A conflict must update something: InnoDB would lock an ignored one in shared mode, and two
        # that go on from there to change the row are a deadlock.
        has_target = engine.connection.features.supports_update_conflicts_with_target
        rows.bulk_create([new], update_conflicts=True, update_fields=["updated_at"],
                         unique_fields=["name"] if has_target else None)  # fmt: skip
        instants = rows.model._meta.get_field("next_fire_at")
        kept = When(spec=wanted["spec"], then=F("next_fire_at"))
        next_fire_at = Case(kept, default=Value(first, instants))
        # next_fire_at comes first: MySQL evaluates assignments in order, and it asks for the
        # old spec.
        row = rows.filter(name=name)
        row.update(next_fire_at=next_fire_at, updated_at=now, **wanted)
        return row.get()


# -- running ------------------------------------------------------------------------------------


def run_schedules(stop: Stoppable | None = None, using: str | None = None) -> None:
    """Lead: fire schedules until ``stop`` (a StopToken or threading.Event), then free the lease.

    Raises LeadershipLost, before anything fires, if another runner leads or has taken over.
    A database that goes away is waited for as long as nobody else takes the lease.
    """
    stop = StopToken() if stop is None else stop
    if not isinstance(stop, Stoppable):
        raise InvalidOption(expected("stop", "a StopToken or threading.Event", stop))
    scheduler = Scheduler(using)
    scheduler.lead()
    scheduler.fire_until(stop)


@dataclass
class Pause:
    """How long a schedule that cannot be fired is left out, unless its row changes."""

    row: sql.ScheduleRow
    failures: int
    until: float  # of the monotonic clock

    @property
    def holds(self) -> bool:
        return self.until > time.monotonic()


@dataclass
class Scheduler:
    """One runner. ``tick`` alone needs no lease: the other two fences hold without it."""

    using: str | None = None
    pauses: dict[int, Pause] = field(default_factory=dict)
    ticked_at: datetime | None = None
    fired: list[tuple[sql.ScheduleRow, datetime, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = sql.engine(self.using)
        self.lease_seconds = conf.current().LEASE_SECONDS
        self.renew_seconds = min(self.lease_seconds / RENEWALS_PER_LEASE, NOTICE_SECONDS)
        self.lease = Lock(SCHEDULER_LOCK, self.lease_seconds, self.engine.alias)
        self.pruner = Pruner(self.engine)

    # -- leading --------------------------------------------------------------------------------

    def lead(self) -> None:
        """Take the lease; raises LeadershipLost if another runner has it."""
        self.engine.own_connection()
        if not self.lease.acquire():
            raise LeadershipLost("expected no other scheduler to lead, got one that does")
        owner = self.lease.owner
        logger.info("leading as %s", owner, extra={"owner": owner})
        signals.send(signals.leadership_gained, owner=owner)

    def fire_until(self, stop: Stoppable) -> None:
        """Renew and fire until stopped, then free the lease; raises LeadershipLost if it is gone.

        Only after ``lead``.
        """
        try:
            while not stop.is_set():
                stop.wait(self._step())
        finally:
            self.resign()

    def fire_due(self, stop: Stoppable) -> None:
        """Fire what is due now, or until stopped, and free the lease. Only after ``lead``."""
        try:
            while not stop.is_set() and self.pass_once():
                pass
        finally:
            self.resign()

    def resign(self) -> None:
        """Free the lease, if it can be; else it lapses."""
        owner = self.lease.owner
        try:
            self.engine.own_connection()
            released = self.lease.release()
        except Error:
            logger.warning("the lease could not be freed and will lapse", exc_info=True,
                           extra={"owner": owner})  # fmt: skip
            released = True
        reason = "released" if released else "taken over"
        signals.send(signals.leadership_lost, owner=owner, reason=reason)

    def _step(self) -> float:
        """One pass; how many seconds to sleep until the next."""
        # Counted from before the pass, or a long one and a sleep would together outlast the lease.
        renew_at = time.monotonic() + self.renew_seconds
        try:
            more = self.pass_once()
            self._prune()
            if more:
                return 0.0
            wake_at = min(renew_at, self.pruner.next_at) if self.pruner.found else renew_at
            return max(SHORTEST_SLEEP, min(self._idle_seconds(), wake_at - time.monotonic()))
        except Error:
            logger.warning("the database failed; trying again", exc_info=True,
                           extra={"alias": self.engine.alias})  # fmt: skip
            self.engine.connection.close()
            return self.renew_seconds / 2
        finally:
            reset_queries()

    def _prune(self) -> None:
        """Delete a little of what has outlived its time; if it fails, fire all the same."""
        try:
            self.pruner.step()
        except Error:
            self.pruner.rest()
            logger.warning("old rows could not be deleted; trying again in a minute", exc_info=True,
                           extra={"alias": self.engine.alias})  # fmt: skip

    def pass_once(self) -> bool:
        """Renew and tick; whether more may be due. Raises LeadershipLost if the lease is gone."""
        self.engine.own_connection()
        more = self.engine.settle(self._renew_and_tick)
        for row, boundary, job_id in self.fired:
            signals.send(signals.schedule_fired, schedule=row.name, boundary=boundary,
                         queue=row.queue, job_id=job_id, by=self.lease.owner)  # fmt: skip
        return more

    def _renew_and_tick(self) -> bool:
        with transaction.atomic(self.engine.alias):
            self.engine.limit_transaction(self.lease_seconds)
            if not self.lease.renew():
                raise LeadershipLost("expected this scheduler to lead, got another that took over")
            return self.tick()

    def _idle_seconds(self) -> float:
        """Until the soonest boundary after the last tick, or the end of a pause.

        Rows that the tick had to leave, as somebody is editing them, do not shorten the sleep.
        """
        ends = [pause.until - time.monotonic() for pause in self.pauses.values() if pause.holds]
        boundary = self._next_boundary()
        if boundary is not None:
            ends.append((boundary - self.engine.clock()).total_seconds())
        return min(ends, default=self.renew_seconds)

    def _next_boundary(self) -> datetime | None:
        try:
            boundary = self.engine.next_boundary(self.ticked_at, self._paused())
        except ValueError:  # SQLite stores any text; the tick reports it when it comes due
            return None
        return boundary if boundary and boundary > self.ticked_at else None

    # -- firing ---------------------------------------------------------------------------------

    def tick(self, now: datetime | None = None) -> bool:
        """Fire what is due at ``now`` (default: the server's), oldest first, up to a batch.

        All or nothing for each schedule: its jobs, its fires and its next boundary. Returns
        whether there may be more. Joins the transaction that is open, or opens its own.
        """
        return self.engine.settle(lambda: self._tick(now))

    def _tick(self, now: datetime | None) -> bool:
        with transaction.atomic(self.engine.alias):
            self.ticked_at = now = now or self.engine.clock()
            self.fired = []
            self._lift_pauses()
            undated = self.engine.schedules_undated(SCHEDULES_PER_TICK, self._paused())
            for row in undated:
                self._guarded(row, self._date, now)
            due = self.engine.schedules_due(now, SCHEDULES_PER_TICK, self._paused())
            for row in due:
                self._guarded(row, self._fire, now)
        return len(due) == SCHEDULES_PER_TICK or len(undated) == SCHEDULES_PER_TICK

    def _guarded(
        self, row: sql.ScheduleRow, verb: Callable[[sql.ScheduleRow, datetime], None], now: datetime
    ) -> None:
        """Run ``verb``; if it fails, undo it and leave the schedule out for a growing while."""
        try:
            with transaction.atomic(self.engine.alias):
                verb(row, now)
        except (OperationalError, InterfaceError) as exc:
            # The database's fault, most likely: the tick is tried again. But it may be the row's
            # (MySQL has one class for both), so it is tried without it.
            if not self.engine.is_conflict(exc.__cause__ or exc):
                self._pause(row)
            raise
        except Exception:
            self._pause(row)
        else:
            self.pauses.pop(row.id, None)

    def _pause(self, row: sql.ScheduleRow) -> None:
        before = self.pauses.get(row.id)
        failures = before.failures + 1 if before else 1
        seconds = retry_delay(1.0, failures, LONGEST_PAUSE)
        self.pauses[row.id] = Pause(row, failures, time.monotonic() + seconds)
        logger.exception("schedule %s cannot be fired; trying again in %.0f s", row.name, seconds,
                         extra={"schedule": row.name, "queue": row.queue, "delay": seconds,
                                "boundary": row.seen})  # fmt: skip

    def _paused(self) -> list[int]:
        return [id for id, pause in self.pauses.items() if pause.holds]

    def _lift_pauses(self) -> None:
        """Forget the failures of schedules that have been changed since."""
        for row in self.engine.schedules_among(self._paused()):
            if row != self.pauses[row.id].row:
                del self.pauses[row.id]

    def _date(self, row: sql.ScheduleRow, now: datetime) -> None:
        self.engine.advance(row, parse_spec(row.spec).first_after(now), None)

    def _fire(self, row: sql.ScheduleRow, now: datetime) -> None:
        due = parse_spec(row.spec).due(self.engine.read(row.seen), now, CATCH_UP)
        # The ledger has some of them if next_fire_at was set back, or the schedule made anew.
        fired = self.engine.fired(row.name, due.boundaries)
        boundaries = [at for at in due.boundaries if at not in fired]
        # The compare-and-set comes before the jobs: whoever loses it fires nothing.
        if not self.engine.advance(row, due.next, boundaries[-1] if boundaries else None):
            return
        if boundaries:
            news = wakeups.announcement(self.engine.alias, row.queue)
            job_ids = self.engine.insert_boundaries(self._job(row), boundaries, news)
            self._record(row, dict(zip(boundaries, job_ids, strict=True)), now)
            self.fired += [(row, at, id) for at, id in zip(boundaries, job_ids, strict=True)]
        if due.skipped:
            self._record_skipped(row, due)

    def fire_by_hand(self, row: sql.ScheduleRow, by: str) -> int:
        """One job and its fire, which has no boundary; needs no lease."""
        job = self._job(row)
        fires = self._fires()
        with transaction.atomic(self.engine.alias):
            job_id = self.engine.insert(job, wakeups.announcement(self.engine.alias, job.queue))
            now = self.engine.clock()
            longest = fires.model._meta.get_field("leader").max_length
            fires.create(schedule=row.name, fired_at=now, job_id=job_id, leader=by[:longest])
        return job_id

    def _job(self, row: sql.ScheduleRow) -> sql.NewJob:
        queue = valid_name("queue", row.queue)
        payload = payloads.encode(payloads.decode(row.payload or "null"))
        given = {name: getattr(row, name) for name in OPTIONS if getattr(row, name) is not None}
        options = conf.current().of(queue).options.over(given)
        return sql.NewJob(queue, payload, options, schedule=row.name)

    def _record(self, row: sql.ScheduleRow, jobs: Mapping[datetime, int], now: datetime) -> None:
        fires, leader = self._fires(), self.lease.owner or ""
        fires.bulk_create(
            fires.model(
                schedule=row.name, boundary=at, fired_at=now, job_id=job_id, leader=leader
            )
            for at, job_id in jobs.items()
        )  # fmt: skip

    def _record_skipped(self, row: sql.ScheduleRow, due: Due) -> None:
        fires = self._fires().filter(schedule=row.name)
        last = due.boundaries[-1]
        skipped = due.skipped - fires.filter(boundary__gt=last, boundary__lt=due.next).count()
        if skipped > 0:
            fires.filter(boundary=last).update(skipped=skipped)
            logger.warning("schedule %s skipped %d boundaries after %s", row.name, skipped, last,
                           extra={"schedule": row.name, "count": skipped, "boundary": last})  # fmt: skip

    def _fires(self) -> Any:
        return apps.get_model("django_alkstore", "Fire").objects.using(self.engine.alias)
