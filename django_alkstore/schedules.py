"""The scheduler: one job per boundary, whatever number of schedulers run, pause or crash.

Three fences make that so. A tick runs in the transaction that renews the leader's lease, and the
lease row stays locked until it commits, so a runner that was paused cannot fire beside its
successor. A schedule moves to its next boundary by compare-and-set. And the ledger has one row per
boundary. The limit of the promise: boundaries beyond the first ``CATCH_UP`` that were missed are
skipped, and the ledger says how many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error, InterfaceError, OperationalError, transaction
from django.db.models import Case, F, Value, When

from . import conf, payloads, sql
from .exceptions import LeadershipLost
from .locks import Lock
from .names import SCHEDULER_LOCK, valid_name
from .options import checked
from .shutdown import Stoppable, StopToken
from .specs import Due, parse_spec

if TYPE_CHECKING:
    from .models import Schedule

logger = logging.getLogger(__name__)

CATCH_UP = 64
SCHEDULES_PER_TICK = 50
RENEWALS_PER_LEASE = 5
NOTICE_SECONDS = 2.0  # a schedule that was added or changed by any route is seen within this
SHORTEST_SLEEP = 0.1
LONGEST_PAUSE = 300.0
OPTIONS = ("priority", "max_attempts", "visibility_timeout", "backoff", "expires_in")


def schedule(
    name: str, spec: str, queue: str, payload: object = None, using: str | None = None,
    **options: Any,
) -> Schedule:  # fmt: skip
    """Create or replace the schedule ``name`` and return its row as stored.

    ``spec`` is ``@every <n><unit>``; ``options`` are those of ``Queue`` but for delay and run_at,
    and override the target queue's. With the spec unchanged the next boundary stays where it is;
    else it is counted from now. Raises InvalidName, ReservedName, InvalidSpec, InvalidPayload,
    InvalidOption or TypeError before any statement.
    """
    name, queue = valid_name("schedule", name), valid_name("queue", queue)
    parsed = parse_spec(spec)
    wanted = {"spec": spec, "queue": queue, "payload": payloads.decode(payloads.encode(payload))}
    wanted |= dict.fromkeys(OPTIONS) | checked(options)
    engine = sql.engine(using)
    model = apps.get_model("django_alkstore", "Schedule")
    rows = model.objects.using(engine.alias).filter(name=name)
    row = rows.first()
    if row is not None and all(getattr(row, key) == value for key, value in wanted.items()):
        return row  # registering everything again at each deploy writes nothing
    now = engine.clock()
    first = parsed.first_after(now)
    with transaction.atomic(engine.alias):
        new = model(name=name, next_fire_at=first, created_at=now, updated_at=now, **wanted)
        model.objects.using(engine.alias).bulk_create([new], ignore_conflicts=True)
        field = model._meta.get_field("next_fire_at")
        kept = Case(When(spec=spec, then=F("next_fire_at")), default=Value(first, field))
        # next_fire_at comes first: MySQL evaluates assignments in order, and it asks for the
        # old spec.
        rows.update(next_fire_at=kept, updated_at=now, **wanted)
    return rows.get()


def unschedule(name: str, using: str | None = None) -> bool:
    """Delete the schedule; False if there is none. Its ledger stays, and so do its jobs."""
    name = valid_name("schedule", name)
    model = apps.get_model("django_alkstore", "Schedule")
    deleted, _ = model.objects.using(sql.write_alias(using)).filter(name=name).delete()
    return deleted > 0


def run_schedules(stop: Stoppable | None = None, using: str | None = None) -> None:
    """Lead: fire schedules until ``stop`` (a StopToken or threading.Event), then free the lease.

    Raises LeadershipLost, before anything fires, if another runner leads or has taken over.
    A database that goes away is waited for as long as nobody else takes the lease.
    """
    Scheduler(using).run(stop or StopToken())


@dataclass
class Pause:
    """How long a schedule that cannot be fired is left out."""

    failures: int = 0
    until: float = 0.0  # of the monotonic clock

    def grow(self) -> float:
        seconds = min(2.0**self.failures, LONGEST_PAUSE)
        self.failures += 1
        self.until = time.monotonic() + seconds
        return seconds


@dataclass
class Scheduler:
    """One runner. ``tick`` alone needs no lease: the other two fences hold without it."""

    using: str | None = None
    pauses: dict[int, Pause] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine = sql.engine(self.using)
        self.lease_seconds = conf.current().LEASE_SECONDS
        self.renew_seconds = min(self.lease_seconds / RENEWALS_PER_LEASE, NOTICE_SECONDS)
        self.lease = Lock(SCHEDULER_LOCK, self.lease_seconds, self.engine.alias)

    # -- leading --------------------------------------------------------------------------------

    def run(self, stop: Stoppable) -> None:
        """See ``run_schedules``."""
        self.lead()
        try:
            while not stop.is_set():
                stop.wait(self._step())
        finally:
            self.resign()

    def lead(self) -> None:
        """Take the lease; raises LeadershipLost if another runner has it."""
        if not self.lease.acquire():
            raise LeadershipLost("expected no other scheduler to lead, got one that does")
        logger.info("leading as %s", self.lease.owner)

    def resign(self) -> None:
        """Free the lease, if it can be; else it lapses."""
        try:
            self.lease.release()
        except Error:
            logger.warning("the lease could not be freed and will lapse", exc_info=True)

    def _step(self) -> float:
        """One pass; how many seconds to sleep until the next."""
        try:
            self.pass_once()
            return self._sleep_seconds()
        except (OperationalError, InterfaceError):
            logger.warning("the database failed; trying again", exc_info=True)
            self.engine.connection.close()
            return self.renew_seconds / 2

    def pass_once(self) -> None:
        """Renew and tick until nothing is due; raises LeadershipLost if the lease is gone."""
        while self.engine.settle(self._renew_and_tick):
            pass

    def _renew_and_tick(self) -> bool:
        with transaction.atomic(self.engine.alias):
            self.engine.limit_transaction(self.lease_seconds)
            if not self.lease.renew():
                raise LeadershipLost("expected this scheduler to lead, got another that took over")
            return self.tick()

    def _sleep_seconds(self) -> float:
        now = time.monotonic()
        paused = [pause.until - now for pause in self.pauses.values()]
        next_boundary = self.engine.next_boundary(self._paused())
        if next_boundary is not None:
            paused.append((next_boundary - self.engine.clock()).total_seconds())
        return max(SHORTEST_SLEEP, min([self.renew_seconds, *paused]))

    # -- firing ---------------------------------------------------------------------------------

    def tick(self, now: datetime | None = None) -> bool:
        """Fire what is due at ``now`` (default: the server's), oldest first, up to a batch.

        All or nothing for each schedule: its jobs, its fires and its next boundary. Returns
        whether there may be more. Joins the transaction that is open, or opens its own.
        """
        with transaction.atomic(self.engine.alias):
            now = now or self.engine.clock()
            undated = self.engine.schedules_undated(SCHEDULES_PER_TICK, self._paused())
            for row in undated:
                self._guarded(row, self._date, now)
            due = self.engine.schedules_due(now, SCHEDULES_PER_TICK, self._paused())
            for row in due:
                self._guarded(row, self._fire, now)
        return len(due) == SCHEDULES_PER_TICK or len(undated) == SCHEDULES_PER_TICK

    def _guarded(self, row: sql.ScheduleRow, verb: Any, now: datetime) -> None:
        """Run ``verb``; if the schedule is at fault leave it out for a growing while."""
        try:
            with transaction.atomic(self.engine.alias):
                verb(row, now)
        except (OperationalError, InterfaceError):
            raise  # the database's fault, or a conflict: the whole tick is tried again
        except Exception:
            seconds = self.pauses.setdefault(row.id, Pause()).grow()
            logger.exception("schedule %s cannot be fired; trying again in %.0f s",
                             row.name, seconds)  # fmt: skip
        else:
            self.pauses.pop(row.id, None)

    def _paused(self) -> list[int]:
        now = time.monotonic()
        return [id for id, pause in self.pauses.items() if pause.until > now]

    def _date(self, row: sql.ScheduleRow, now: datetime) -> None:
        self.engine.advance(row, parse_spec(row.spec).first_after(now), None)

    def _fire(self, row: sql.ScheduleRow, now: datetime) -> None:
        due = parse_spec(row.spec).due(self.engine.read(row.seen), now, CATCH_UP)
        if not due.boundaries:
            return
        # The compare-and-set comes first: whoever loses it fires nothing.
        if not self.engine.advance(row, due.next, due.boundaries[-1]):
            return
        fired = self.engine.fired(row.name, due.boundaries)
        boundaries = [at for at in due.boundaries if at not in fired]
        if boundaries:
            job_ids = self.engine.insert_boundaries(self._job(row), boundaries)
            self._record(row, due, dict(zip(boundaries, job_ids, strict=True)), now)
        if due.skipped:
            logger.warning("schedule %s skipped %d boundaries after %s",
                           row.name, due.skipped, due.boundaries[-1])  # fmt: skip

    def _job(self, row: sql.ScheduleRow) -> sql.NewJob:
        queue = valid_name("queue", row.queue)
        payload = payloads.encode(payloads.decode(row.payload or "null"))
        given = {name: getattr(row, name) for name in OPTIONS if getattr(row, name) is not None}
        options = conf.current().of(queue).options.over(given)
        return sql.NewJob(queue, payload, options, schedule=row.name)

    def _record(
        self, row: sql.ScheduleRow, due: Due, jobs: Mapping[datetime, int], now: datetime
    ) -> None:
        model = apps.get_model("django_alkstore", "Fire")
        leader = self.lease.owner or ""
        model.objects.using(self.engine.alias).bulk_create(
            model(
                schedule=row.name, boundary=at, fired_at=now, job_id=job_id, leader=leader,
                skipped=due.skipped if at == due.boundaries[-1] else 0,
            )
            for at, job_id in jobs.items()
        )  # fmt: skip
