"""The scheduler: one job per boundary, whatever number of schedulers run, pause or crash.

Three fences make that so. A tick runs in the transaction that renews the leader's lease, and the
lease row stays locked until it commits, so a runner that was paused cannot fire beside its
successor. A schedule moves to its next boundary by compare-and-set. And the ledger has one row per
boundary. The limit of the promise: of the boundaries that were missed, those that the schedule's
``catch_up`` and ``overlap`` do not ask for are dropped, and the ledger says how many and why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import Error, InterfaceError, OperationalError, reset_queries, transaction

from . import conf, signals, sql, wakeups
from .backoff import retry_delay
from .declared import Declaring
from .exceptions import InvalidOption, LeadershipLost, expected
from .locks import Lock
from .names import SCHEDULER_LOCK
from .retention import Pruner
from .schedules import job_of, plan_of
from .shutdown import Stoppable, StopToken
from .timetables import ON_TIME_SECONDS, Dropped, Firing, Plan, jittered

logger = logging.getLogger(__name__)

SCHEDULES_PER_TICK = 50
RENEWALS_PER_LEASE = 5
# A lease that ends later than both is not one of another runner's whose settings differ.
LEASES_AHEAD, MISDATED_SECONDS = 10, 600.0
LEASES_ON_TIME = 3  # what a successor fires for a leader that was killed was not missed
NOTICE_SECONDS = 2.0  # a schedule that was added or changed by any route is seen within this
SHORTEST_SLEEP = 0.05
LONGEST_PAUSE = 300.0


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
    declaring: Declaring | None = None  # one that has stood by, to go on with
    pauses: dict[int, Pause] = field(default_factory=dict)
    ticked_at: datetime | None = None
    fired: list[tuple[sql.ScheduleRow, datetime, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = sql.engine(self.using)
        self.lease_seconds = conf.current().LEASE_SECONDS
        self.renew_seconds = min(self.lease_seconds / RENEWALS_PER_LEASE, NOTICE_SECONDS)
        self.on_time = timedelta(seconds=max(ON_TIME_SECONDS, LEASES_ON_TIME * self.lease_seconds))
        self.lease = Lock(SCHEDULER_LOCK, self.lease_seconds, self.engine.alias)
        self.pruner = Pruner(self.engine)
        self.declaring = self.declaring or Declaring(self.using)

    # -- leading --------------------------------------------------------------------------------

    def lead(self) -> None:
        """Take the lease; raises LeadershipLost if another runner has it."""
        self.engine.own_connection()
        if not self.lease.acquire() and not (self._free_misdated() and self.lease.acquire()):
            raise LeadershipLost("expected no other scheduler to lead, got one that does")
        owner = self.lease.owner
        logger.info("leading as %s", owner, extra={"owner": owner})
        signals.send(signals.leadership_gained, owner=owner)
        self.declaring.begin()

    def _free_misdated(self) -> bool:
        """Free a lease whose end is far beyond what anybody asks for: the clock that wrote it has been
        set back since, and its holder, who would have renewed it, is gone."""
        ahead = max(MISDATED_SECONDS, LEASES_AHEAD * self.lease_seconds)
        beyond = self.engine.clock() + timedelta(seconds=ahead)
        leases = apps.get_model("django_alkstore", "Lock").objects.using(self.engine.alias)
        misdated = leases.filter(name=SCHEDULER_LOCK, expires_at__gt=beyond)
        return any(
            self.engine.release_lock(SCHEDULER_LOCK, owner, token)
            for owner, token in misdated.values_list("owner", "token")
        )

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
            self.declaring.step()
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
        except Exception as exc:
            # A connection that was lost meanwhile: the block around would roll back without a word.
            if transaction.get_rollback(self.engine.alias):
                raise OperationalError("the transaction of the tick was lost") from exc
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
        timetable = plan_of(self.engine, row).timetable(row.fires)
        self.engine.advance(row, timetable.first_after(now), [])

    def _fire(self, row: sql.ScheduleRow, now: datetime) -> None:
        plan = plan_of(self.engine, row)
        firing, known = self._look(row, plan, now)
        boundaries = [at for at in firing.boundaries if at not in known]
        # The compare-and-set comes before the jobs: whoever loses it fires nothing.
        if not self.engine.advance(row, firing.next, boundaries):
            return
        if firing.dropped and firing.dropped.first not in known:
            self._record_dropped(row, firing.dropped, now)
        if boundaries:
            starts = [(at, jittered(row.name, at, plan.jitter)) for at in boundaries]
            news = wakeups.announcement(self.engine.alias, row.queue)
            job_ids = self.engine.insert_boundaries(job_of(row, plan), starts, news)
            self._record(row, dict(zip(boundaries, job_ids, strict=True)), now)
            self.fired += [(row, at, id) for at, id in zip(boundaries, job_ids, strict=True)]
        if firing.skipped:
            self._record_skipped(row, firing)

    def _look(
        self, row: sql.ScheduleRow, plan: Plan, now: datetime
    ) -> tuple[Firing, set[datetime]]:
        """What to do, and which of its boundaries the ledger has: some, if next_fire_at was set back
        or the schedule made anew. Those are among its fires so far."""
        boundary, repeated = self.engine.read(row.seen), 0
        alive = plan.overlap != "allow" and self.engine.last_job_lives(row)
        while True:
            timetable = plan.timetable(max(0, row.fires - repeated))
            firing = timetable.firing(boundary, now, alive, self.on_time)
            known = self._known(row, firing)
            if len(known.intersection(firing.boundaries)) <= repeated:
                return firing, known
            repeated = len(known.intersection(firing.boundaries))

    def _known(self, row: sql.ScheduleRow, firing: Firing) -> set[datetime]:
        """Those of the boundaries that the ledger has."""
        dropped = [firing.dropped.first] if firing.dropped else []
        asked = [*dropped, *firing.boundaries]
        return self.engine.fired(row.name, asked) if asked else set()

    def _record(self, row: sql.ScheduleRow, jobs: Mapping[datetime, int], now: datetime) -> None:
        self._fires().bulk_create(
            self._new_fire(row, at, now, job_id=job_id) for at, job_id in jobs.items()
        )

    def _record_dropped(self, row: sql.ScheduleRow, dropped: Dropped, now: datetime) -> None:
        count, why = dropped.count, dropped.why
        self._new_fire(row, dropped.first, now, skipped=count, why=why).save(
            using=self.engine.alias, force_insert=True
        )
        self._log_skipped(row, count, f"from {dropped.first} on: {why}", dropped.first)

    def _record_skipped(self, row: sql.ScheduleRow, firing: Firing) -> None:
        fires = self._fires().filter(schedule=row.name)
        last = firing.boundaries[-1]
        ahead = {"boundary__gt": last} | ({"boundary__lt": firing.next} if firing.next else {})
        skipped = firing.skipped - fires.filter(**ahead).count()
        if skipped > 0:
            fires.filter(boundary=last).update(skipped=skipped, why=firing.why)
            self._log_skipped(row, skipped, f"after {last}: {firing.why}", last)

    def _log_skipped(self, row: sql.ScheduleRow, count: int, which: str, at: datetime) -> None:
        logger.warning("schedule %s skipped %d boundaries %s", row.name, count, which,
                       extra={"schedule": row.name, "count": count, "boundary": at})  # fmt: skip

    def _new_fire(
        self, row: sql.ScheduleRow, boundary: datetime, now: datetime, **more: Any
    ) -> Any:
        leader = self.lease.owner or ""
        return self._fires().model(
            schedule=row.name, boundary=boundary, fired_at=now, leader=leader, **more
        )

    def _fires(self) -> Any:
        return apps.get_model("django_alkstore", "Fire").objects.using(self.engine.alias)
