"""Schedules: registering and changing them, and what they will do next.

A schedule keeps its next boundary through every change that leaves its boundaries where they are,
so a deploy that registers everything again postpones nothing. Only the scheduler (see
``scheduler``) fires boundaries; ``fire_now`` stands for none and moves none. What is declared in
code or settings (see ``declared``) is changed there alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import transaction

from . import conf, payloads, signals, sql, wakeups
from .exceptions import InvalidOption, InvalidSpec, expected
from .names import valid_name
from .options import OPTIONS, whole_number
from .specs import Spec, parse_spec
from .timetables import TIMES, Plan, plan
from .zones import zone_of

if TYPE_CHECKING:
    from .models import Schedule

BOUNDARIES_MAX = 100_000


# -- registering --------------------------------------------------------------------------------


def schedule(
    name: str, spec: str, queue: str, payload: object = None, using: str | None = None,
    **options: Any,
) -> Schedule:  # fmt: skip
    """Create or replace the schedule ``name`` and return its row as stored.

    ``spec`` is ``@every <n><unit>`` or ``@cron <fields>``. ``options`` are those of ``Queue`` but
    for delay and run_at, over the target queue's, and: ``timezone`` (an IANA name; default:
    settings.TIME_ZONE), ``catch_up`` ("all": up to 64 missed boundaries, "latest": one for all,
    "none"), ``overlap`` while the last job is alive ("allow", "skip", "queue": wait for its end),
    ``jitter`` (seconds), ``starts_at``, ``ends_at``, ``max_fires``.

    With its boundaries unchanged the next one stays where it is; else it is counted from now.
    Raises InvalidName, ReservedName, InvalidSpec, InvalidPayload, InvalidOption or TypeError before
    any statement, and InvalidOption for a schedule that is declared.
    """
    name, wanted = valid_name("schedule", name), plan(spec, queue, payload, **options)
    engine = sql.engine(using)
    try:
        row = engine.settle(rows_of(engine.alias).filter(name=name).first)
    except ValueError:  # its payload was made no JSON, and is to be replaced
        row = None
    if row is not None and not row.declared and says(row, wanted):
        return row  # registering everything again at each deploy writes nothing
    return engine.settle(lambda: put(engine, name, wanted))


def unschedule(name: str, using: str | None = None) -> bool:
    """Delete the schedule; False if there is none. Its ledger stays, and so do its jobs.

    Raises InvalidOption for one that is declared.
    """
    name = valid_name("schedule", name)
    engine = sql.engine(using)
    row = engine.schedule_named(name)
    if row is not None:
        _refuse_declared(row)
    rows = rows_of(engine.alias).filter(name=name, declared=False)
    return engine.settle(rows.delete)[0] > 0


def update_schedule(name: str, using: str | None = None, **changes: Any) -> Schedule | None:
    """Change what is given of a schedule (``spec``, ``queue``, ``payload`` and the options of
    ``schedule``) and nothing else; its row as stored, None if there is none.

    A null payload is a payload; an option of its jobs that is None goes back to the target queue's.
    Raises what ``schedule`` does.
    """
    name = valid_name("schedule", name)
    probe = {"spec": "@every 1s", "queue": "probe"} | _without_nulls(changes)
    plan(**probe)  # refuses before any statement what can be told from the changes alone
    engine = sql.engine(using)
    return engine.settle(lambda: _change(engine, name, changes))


def pause_schedule(name: str, using: str | None = None) -> bool:
    """Fire it no more until it is resumed; False if there is none, or it is paused already."""
    engine = sql.engine(using)
    rows = rows_of(engine.alias).filter(name=name, enabled=True)
    changed = {"enabled": False, "updated_at": engine.clock()}
    return engine.settle(lambda: rows.update(**changed)) > 0


def resume_schedule(name: str, using: str | None = None) -> bool:
    """Fire it again, from its next boundary on: those that passed meanwhile are not made up for.

    False if there is none, or it is not paused. Raises InvalidSpec for a spec spoilt by hand.
    """
    engine = sql.engine(using)
    return engine.settle(lambda: _resume(engine, name))


def fire_now(name: str, by: str = "", using: str | None = None) -> int | None:
    """Enqueue one job of the schedule at once, paused or not; its id, or None if there is none.

    It stands for no boundary and moves none. ``by`` is who did it, for the ledger. Raises what
    ``schedule`` would for a row that was spoilt by hand.
    """
    engine = sql.engine(using)
    row = engine.schedule_named(name)
    if row is None:
        return None
    job = job_of(row, plan_of(engine, row))
    job_id = engine.settle(lambda: _fire_by_hand(engine, row, job, by))
    signals.send(signals.schedule_fired, schedule=name, boundary=None, queue=row.queue,
                 job_id=job_id, by=by)  # fmt: skip
    return job_id


# -- looking ------------------------------------------------------------------------------------


def list_schedules(using: str | None = None) -> list[Schedule]:
    """The schedules, by name."""
    return list(rows_of(sql.engine(using).alias).order_by("name"))


def next_boundaries(name: str, n: int = 10, using: str | None = None) -> list[datetime]:
    """The next ``n`` boundaries of a schedule (of a paused one: if it were resumed now).

    Aware datetimes on the clocks of its own zone; fewer, or none, where it ends or is gone. Compare
    them as UTC: Python holds those of an hour that comes twice equal to no time of another zone.
    """
    n = whole_number("n", n, 1, BOUNDARIES_MAX)
    engine = sql.engine(using)
    row = engine.schedule_named(name)
    if row is None or row.ended:
        return []
    wanted = plan_of(engine, row)
    timetable, now = wanted.timetable(row.fires), engine.clock()
    if row.seen is None:
        first = timetable.first_after(now)
    elif row.enabled:
        first = engine.read(row.seen)
    else:
        first = timetable.after(engine.read(row.seen), now)
    zone = zone_of(wanted.timezone)
    return [at.astimezone(zone) for at in islice(timetable.upcoming(first), n)]


# -- rows -----------------------------------------------------------------------------------------


def rows_of(alias: str) -> Any:
    """The schedules in a database."""
    return apps.get_model("django_alkstore", "Schedule").objects.using(alias)


def plan_of(engine: sql.Engine, row: sql.ScheduleRow, **changes: Any) -> Plan:
    """What the row says, with the changes over it, checked anew: a row can be spoilt by hand."""
    given = {name: getattr(row, name) for name in ("spec", "queue", *TIMES, *OPTIONS)}
    given |= {name: engine.read(given[name]) for name in ("starts_at", "ends_at")}
    if "payload" not in changes:
        given["payload"] = payloads.decode(row.payload or "null")
    return plan(**_without_nulls(given | changes))


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without the options that are null on the row: those are the target queue's."""
    return {key: value for key, value in given.items() if key not in OPTIONS or value is not None}


def job_of(row: sql.ScheduleRow, wanted: Plan) -> sql.NewJob:
    """A job of the schedule, with what its queue is set to now."""
    options = conf.current().of(wanted.queue).options.over(wanted.options)
    return sql.NewJob(wanted.queue, payloads.encode(wanted.payload), options, schedule=row.name)


def says(row: Schedule, wanted: Plan) -> bool:
    """Whether the row is as wanted. Compared as JSON: to Python, True equals 1 and 1.0."""
    stored = {key: getattr(row, key) for key in wanted.columns}
    return _as_text(stored) == _as_text(wanted.columns)


def _as_text(columns: Mapping[str, Any]) -> str:
    instants = ("starts_at", "ends_at")
    utc = {k: columns[k].astimezone(timezone.utc).isoformat() for k in instants if columns[k]}
    return json.dumps({**columns, **utc}, sort_keys=True, default=str)


def put(engine: sql.Engine, name: str, wanted: Plan, declared: bool = False) -> Schedule:
    """Insert the row or change it, in one transaction; the row as stored."""
    now = engine.clock()
    rows = rows_of(engine.alias)
    own = {"declared": declared, "created_at": now, "updated_at": now}
    new = rows.model(name=name, **own, **wanted.columns,
                     **_next(wanted.timetable().first_after(now), now))  # fmt: skip
    with transaction.atomic(engine.alias):
        # A conflict must update something: InnoDB would lock an ignored one in shared mode, and two
        # that go on from there to change the row are a deadlock.
        has_target = engine.connection.features.supports_update_conflicts_with_target
        rows.bulk_create([new], update_conflicts=True, update_fields=["updated_at"],
                         unique_fields=["name"] if has_target else None)  # fmt: skip
        row = engine.schedule_named(name)  # which is ours until the end of the transaction
        if declared:
            _refuse_handmade(row)
        else:
            _refuse_declared(row)
        changed = wanted.columns | _retimed(engine, row, wanted, now)
        rows.filter(name=name).update(updated_at=now, **changed)
        return rows.get(name=name)


def _change(engine: sql.Engine, name: str, changes: Mapping[str, Any]) -> Schedule | None:
    now = engine.clock()
    rows = rows_of(engine.alias).filter(name=name)
    with transaction.atomic(engine.alias):
        if not rows.update(updated_at=now):
            return None
        row = engine.schedule_named(name)  # which is ours until the end of the transaction
        _refuse_declared(row)
        wanted = plan_of(engine, row, **changes)
        changed = {key: wanted.columns[key] for key in changes}
        changed |= _retimed(engine, row, wanted, now)
        if changed:
            rows.update(**changed)
        return rows.get()


def _resume(engine: sql.Engine, name: str) -> bool:
    now = engine.clock()
    rows = rows_of(engine.alias).filter(name=name)
    with transaction.atomic(engine.alias):
        if not rows.filter(enabled=False).update(enabled=True, updated_at=now):
            return False
        row = engine.schedule_named(name)  # which is ours until the end of the transaction
        if row.seen is not None:
            timetable = plan_of(engine, row).timetable(row.fires)
            rows.update(**_next(timetable.after(engine.read(row.seen), now), now))
        return True


def _refuse_declared(row: sql.ScheduleRow) -> None:
    if row.declared:
        wanted = "that of a schedule made by hand, not one declared in code or settings"
        raise InvalidOption(expected("the name", wanted, row.name))


def _refuse_handmade(row: sql.ScheduleRow) -> None:
    if not row.declared:
        wanted = "that of no schedule made by hand"
        raise InvalidOption(expected("the name of a declared schedule", wanted, row.name))


def _retimed(
    engine: sql.Engine, row: sql.ScheduleRow, wanted: Plan, now: datetime
) -> dict[str, Any]:
    """What a changed plan changes of the row's own timing: nothing if its boundaries stay."""
    grid = (_spec_of(row), engine.read(row.starts_at))
    end = (engine.read(row.ends_at), row.max_fires)
    same_grid = grid == (wanted.timetable().spec, wanted.starts_at)
    if same_grid and (not row.ended or end == (wanted.ends_at, wanted.max_fires)):
        return {}
    return _next(wanted.timetable(row.fires).first_after(now), now)


def _spec_of(row: sql.ScheduleRow) -> Spec | None:
    """What the row's spec means, which ``@every 60s`` and ``@every 1m`` do in every zone alike; None
    for one that was spoilt by hand."""
    try:
        return parse_spec(row.spec, row.timezone)
    except (InvalidSpec, InvalidOption):
        return None


def _next(boundary: datetime | None, now: datetime) -> dict[str, Any]:
    return {"next_fire_at": boundary, "ended_at": now if boundary is None else None}


def _fire_by_hand(engine: sql.Engine, row: sql.ScheduleRow, job: sql.NewJob, by: str) -> int:
    """One job and its fire, which has no boundary; needs no lease."""
    fires = apps.get_model("django_alkstore", "Fire").objects.using(engine.alias)
    longest = fires.model._meta.get_field("leader").max_length
    with transaction.atomic(engine.alias):
        job_id = engine.insert(job, wakeups.announcement(engine.alias, job.queue))
        now = engine.clock()
        fires.create(schedule=row.name, fired_at=now, job_id=job_id, leader=by[:longest])
    return job_id
