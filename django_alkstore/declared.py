"""Schedules that are declared, in ``ALKSTORE["SCHEDULES"]`` or above a handler, put in force as a set.

Those of the set are added or changed, and declared ones that are not in it any more are deleted;
schedules made by hand are never touched. A set that has been superseded by a newer one is not put
in force again by a leader, so that old and new code can run side by side while a deployment rolls
on. The limit: to go back to older code is no news to it, and is said with ``alkstore_schedules
sync``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from django.apps import apps
from django.db import transaction

from . import conf, registry, sql
from .exceptions import AlreadyRegistered
from .locks import Lock
from .names import DECLARING_LOCK
from .schedules import put, rows_of, says
from .timetables import Plan

logger = logging.getLogger(__name__)

LOCK_SECONDS = 60.0  # it is held in a transaction, which frees it whatever happens


@dataclass
class Synced:
    """The names of the schedules that were added, changed and removed, and of those that are
    declared and were made by hand, which stay as they are."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)


def declared_plans() -> dict[str, Plan]:
    """By name, what the code at hand declares. Imports the ``jobs`` modules, and raises what they
    raise; AlreadyRegistered for a name that is declared in settings too."""
    registry.autodiscover()
    plans, settings = registry.declarations.plans(), conf.current().SCHEDULES
    if twice := plans.keys() & settings.keys():
        where = "in settings or above a handler, got both"
        raise AlreadyRegistered(f"expected schedule {min(twice)!r} to be declared {where}")
    return {**plans, **settings}


def sync(using: str | None = None) -> Synced | None:
    """Put what the code at hand declares in force, whatever was; None if another process is just
    doing the like."""
    engine, plans = sql.engine(using), declared_plans()
    return engine.settle(lambda: _put_in_force(engine, plans))


def sync_newer(using: str | None = None) -> bool:
    """Likewise, unless the set has been superseded; whether that is settled now."""
    engine, plans = sql.engine(using), declared_plans()
    latest = _declarations(engine).order_by("-id").first()
    if latest is None and not plans:
        return True
    if is_superseded(engine, plans):
        logger.warning("the declared schedules of this code are older than those in force, and "
                       "leave them alone", extra={"alias": engine.alias})  # fmt: skip
        return True
    return engine.settle(lambda: _put_in_force(engine, plans)) is not None


def is_superseded(engine: sql.Engine, plans: Mapping[str, Plan]) -> bool:
    """Whether the set was in force once, and another one is now."""
    latest = _declarations(engine).order_by("-id").first()
    digest = _digest(plans)
    return (
        latest is not None
        and latest.digest != digest
        and _declarations(engine).filter(digest=digest).exists()
    )


def _put_in_force(engine: sql.Engine, plans: Mapping[str, Plan]) -> Synced | None:
    with transaction.atomic(engine.alias):
        lock = Lock(DECLARING_LOCK, LOCK_SECONDS, engine.alias)
        if not lock.acquire():
            return None
        synced = _apply(engine, plans)
        _note(engine, _digest(plans))
        lock.release()
    _log(engine, synced)
    return synced


def _apply(engine: sql.Engine, plans: Mapping[str, Plan]) -> Synced:
    synced = Synced()
    for name, wanted in sorted(plans.items()):
        row = engine.schedule_named(name)
        if row is None:
            synced.added.append(name)
        elif not row.declared:
            synced.by_hand.append(name)
            continue
        elif says(rows_of(engine.alias).get(name=name), wanted):
            continue
        else:
            synced.changed.append(name)
        put(engine, name, wanted, declared=True)
    gone = rows_of(engine.alias).filter(declared=True).exclude(name__in=plans)
    synced.removed += sorted(gone.values_list("name", flat=True))
    gone.delete()
    return synced


def _note(engine: sql.Engine, digest: str) -> None:
    """Make the set the latest one."""
    rows = _declarations(engine)
    latest = rows.order_by("-id").first()
    if latest is None or latest.digest != digest:
        rows.filter(digest=digest).delete()
        rows.create(digest=digest, synced_at=engine.clock())


def _log(engine: sql.Engine, synced: Synced) -> None:
    for name in synced.by_hand:
        logger.error("schedule %s is declared, and one made by hand has its name: that one stays",
                     name, extra={"schedule": name, "alias": engine.alias})  # fmt: skip
    if count := len(synced.added) + len(synced.changed) + len(synced.removed):
        logger.info("%d declared schedules were added, %d changed, %d removed", len(synced.added),
                    len(synced.changed), len(synced.removed),
                    extra={"count": count, "alias": engine.alias})  # fmt: skip


def _declarations(engine: sql.Engine) -> Any:
    return apps.get_model("django_alkstore", "Declaration").objects.using(engine.alias)


def _digest(plans: Mapping[str, Plan]) -> str:
    columns = {name: wanted.columns for name, wanted in plans.items()}
    return sha256(json.dumps(columns, sort_keys=True, default=str).encode()).hexdigest()
