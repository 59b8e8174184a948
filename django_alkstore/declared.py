"""Schedules that are declared, in ``ALKSTORE["SCHEDULES"]`` or above a handler, put in force as a set.

Those of the set are added or changed, and declared ones that are not in it any more are deleted;
schedules made by hand are never touched. Every scheduler says each minute which set it has. One that
leads puts its own in force, unless a newer one is in use: so old and new code can run side by side
while a deployment rolls on. The limit: the newer set is the one that was first seen later, so after a
step back to older code the older set is in force only when the newer one has not been in use for
``ROLLING_SECONDS``, or at once by ``alkstore_schedules sync``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Any

from django.apps import apps
from django.db import Error, transaction

from . import conf, registry, sql
from .exceptions import AlreadyRegistered
from .locks import Lock
from .names import DECLARING_LOCK
from .schedules import put, rows_of, says
from .timetables import Plan

logger = logging.getLogger(__name__)

NOTE_SECONDS = 60.0
ROLLING_SECONDS = 900.0  # a set that no scheduler has had for so long is not in use
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
    return engine.settle(lambda: _sync(engine, plans))


def is_superseded(engine: sql.Engine, plans: Mapping[str, Plan]) -> bool:
    """Whether another set is in use that was first seen later than this one."""
    digest, sets = _digest(plans), _sets(engine)
    newest = sets.order_by("-id").first()
    if newest is None or newest.digest == digest or not sets.filter(digest=digest).exists():
        return False
    since = engine.clock() - timedelta(seconds=ROLLING_SECONDS)
    return sets.filter(pk=newest.pk, seen_at__gt=since).exists()


class Declaring:
    """One scheduler's part in it. What goes wrong there is logged, and stops no firing."""

    def __init__(self, using: str | None = None) -> None:
        self.engine = sql.engine(using)
        self.settled = False  # whether the set is in force, or has been left to a newer one
        self._next_at = float("-inf")

    def begin(self) -> None:
        """The scheduler leads from now on."""
        self.settled, self._next_at = False, float("-inf")
        self.step()

    def step(self) -> None:
        """While it leads: put the set in force, if it is not superseded."""
        self._each_minute(self._put_in_force)

    def stand_by(self) -> None:
        """While it does not: say that the set is in use."""
        self._each_minute(lambda: _note(self.engine, _digest(declared_plans())))

    def _each_minute(self, verb: Callable[[], None]) -> None:
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + NOTE_SECONDS
        try:
            verb()
        except Error:
            self._next_at = float("-inf")
            logger.warning("the declared schedules could not be put in force; trying again",
                           exc_info=True, extra={"alias": self.engine.alias})  # fmt: skip
        except Exception:
            self.settled, self._next_at = True, float("inf")
            logger.exception("the declared schedules are wrong, and stay as they were",
                             extra={"alias": self.engine.alias})  # fmt: skip

    def _put_in_force(self) -> None:
        engine, plans = self.engine, declared_plans()
        _note(engine, _digest(plans))
        if is_superseded(engine, plans):
            if not self.settled:
                logger.warning("the declared schedules of this code are older than others in use, "
                               "and leave those alone", extra={"alias": engine.alias})  # fmt: skip
            self.settled = True
        elif not plans and not rows_of(engine.alias).filter(declared=True).exists():
            self.settled = True
        elif not self.settled or not _is_newest(engine, plans):
            self.settled = engine.settle(lambda: _sync_newer(engine, plans))
            if not self.settled:
                self._next_at = float("-inf")


# -- sets -----------------------------------------------------------------------------------------


def _sync(engine: sql.Engine, plans: Mapping[str, Plan]) -> Synced | None:
    with _alone(engine) as alone:
        return _apply(engine, plans) if alone else None


def _sync_newer(engine: sql.Engine, plans: Mapping[str, Plan]) -> bool:
    """Whether nobody else was at it."""
    with _alone(engine) as alone:
        # Asked once more: whoever was paused meanwhile may have been superseded.
        if alone and not is_superseded(engine, plans):
            _apply(engine, plans)
        return alone


@contextmanager
def _alone(engine: sql.Engine) -> Iterator[bool]:
    """A transaction in which nobody else puts a set in force; False if somebody does."""
    with transaction.atomic(engine.alias):
        lock = Lock(DECLARING_LOCK, LOCK_SECONDS, engine.alias)
        alone = lock.acquire()
        yield alone
        if alone:
            lock.release()


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
    if not _is_newest(engine, plans):
        _sets(engine).filter(digest=_digest(plans)).delete()
        _note(engine, _digest(plans))
    _log(engine, synced)
    return synced


def _note(engine: sql.Engine, digest: str) -> None:
    """Write down that the set is in use; one that is new is the newest."""
    sets, now = _sets(engine), engine.clock()
    if not engine.settle(lambda: sets.filter(digest=digest).update(seen_at=now)):
        new = [sets.model(digest=digest, seen_at=now)]
        engine.settle(lambda: sets.bulk_create(new, ignore_conflicts=True))


def _is_newest(engine: sql.Engine, plans: Mapping[str, Plan]) -> bool:
    newest = _sets(engine).order_by("-id").first()
    return newest is not None and newest.digest == _digest(plans)


def _log(engine: sql.Engine, synced: Synced) -> None:
    for name in synced.by_hand:
        logger.error("schedule %s is declared, and one made by hand has its name: that one stays",
                     name, extra={"schedule": name, "alias": engine.alias})  # fmt: skip
    if count := len(synced.added) + len(synced.changed) + len(synced.removed):
        logger.info("%d declared schedules were added, %d changed, %d removed", len(synced.added),
                    len(synced.changed), len(synced.removed),
                    extra={"count": count, "alias": engine.alias})  # fmt: skip


def _sets(engine: sql.Engine) -> Any:
    return apps.get_model("django_alkstore", "Declaration").objects.using(engine.alias)


def _digest(plans: Mapping[str, Plan]) -> str:
    columns = {name: wanted.columns for name, wanted in plans.items()}
    return sha256(json.dumps(columns, sort_keys=True, default=str).encode()).hexdigest()
