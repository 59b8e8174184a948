"""What a schedule is asked to do, checked at the door, and what that means in time.

A timetable is a spec between ``starts_at`` and ``ends_at`` (both may fire), with a rule for what was
missed and one for what meets a job that is still alive. Every boundary that it passes it either
fires or names as dropped. Pure arithmetic: nothing here reads a clock or a database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import Any

from .backoff import seconds
from .exceptions import InvalidOption, expected
from .names import valid_name
from .options import OPTIONS, checked, instant_option, whole_number
from .payloads import decode, encode
from .specs import Spec, parse_spec
from .zones import zone_of

CATCH_UP = 64  # so many missed boundaries are made up for, or wait for a job to end
ON_TIME_SECONDS = 30.0  # a boundary that is fired within this was not missed
MISSED = "missed"
WAITED = f"more than {CATCH_UP} waited"
ALIVE = "the last job was alive"


@dataclass(frozen=True)
class Dropped:
    """Boundaries that fire nothing: the first of them, how many, and why."""

    first: datetime
    count: int
    why: str


@dataclass(frozen=True)
class Firing:
    """What a look at a schedule finds.

    ``dropped`` lie before ``boundaries``, which are to fire; ``skipped`` so many right after them,
    and ``why``. ``next``: when to look again, None for never.
    """

    boundaries: list[datetime]
    next: datetime | None
    skipped: int = 0
    why: str = MISSED
    dropped: Dropped | None = None


# -- what was missed ----------------------------------------------------------------------------


def _all(spec: Spec, boundary: datetime, until: datetime, on_time: datetime) -> Firing:
    due = spec.due(boundary, until, CATCH_UP)
    return Firing(due.boundaries, due.next, due.skipped)


def _latest(spec: Spec, boundary: datetime, until: datetime, on_time: datetime) -> Firing:
    return _last(spec, boundary, until, 1, MISSED)


def _last(spec: Spec, boundary: datetime, until: datetime, limit: int, why: str) -> Firing:
    due = spec.due(boundary, until, limit)
    if not due.skipped:
        return Firing(due.boundaries, due.next)
    dropped = Dropped(due.boundaries[0], due.skipped, why)
    return Firing(spec.last_until(boundary, until, limit), due.next, dropped=dropped)


def _newest(spec: Spec, boundary: datetime, until: datetime, on_time: datetime) -> Firing:
    return _last(spec, boundary, until, CATCH_UP, WAITED)


def _none(spec: Spec, boundary: datetime, until: datetime, on_time: datetime) -> Firing:
    missed = spec.due(boundary, min(until, on_time), 1)
    found = _all(spec, missed.next, until, on_time)
    if not missed.boundaries:
        return found
    return replace(found, dropped=Dropped(missed.boundaries[0], missed.skipped + 1, MISSED))


# -- what meets a job that is alive ---------------------------------------------------------------


def _allow(found: Firing, alive: bool) -> Firing:
    return found


def _skip(found: Firing, alive: bool) -> Firing:
    """The first goes ahead, and is alive when the next ones come."""
    if not found.boundaries:
        return found
    if not alive:
        after = found.skipped + len(found.boundaries) - 1
        why = found.why if len(found.boundaries) == 1 else ALIVE
        return replace(found, boundaries=found.boundaries[:1], skipped=after, why=why)
    count = len(found.boundaries) + found.skipped
    if found.dropped is None:
        return Firing([], found.next, dropped=Dropped(found.boundaries[0], count, ALIVE))
    more = replace(found.dropped, count=found.dropped.count + count)
    return Firing([], found.next, dropped=more)


def _queue(found: Firing, alive: bool) -> Firing:
    """One at a time: the others wait where they are, unless they are too many."""
    if not found.boundaries:
        return found
    if alive:
        return replace(found, boundaries=[], next=found.boundaries[0], skipped=0)
    if found.skipped or len(found.boundaries) == 1:
        return _skip(found, False)
    return replace(found, boundaries=found.boundaries[:1], next=found.boundaries[1])


CATCH_UPS: dict[str, Callable[..., Firing]] = {"all": _all, "latest": _latest, "none": _none}
OVERLAPS: dict[str, Callable[..., Firing]] = {"allow": _allow, "skip": _skip, "queue": _queue}


# -- timetables -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timetable:
    """When a schedule fires. ``fires`` is how often it has, of at most ``max_fires``."""

    spec: Spec
    catch_up: str = "all"
    overlap: str = "allow"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_fires: int | None = None
    fires: int = 0

    def first_after(self, now: datetime) -> datetime | None:
        """The first boundary of a schedule that begins ``now``; None if there is none.

        Intervals are counted from ``starts_at`` where there is one.
        """
        if self.starts_at is None:
            return self._within(self.spec.first_after(now))
        return self.after(self.starts_at, now)

    def after(self, boundary: datetime, now: datetime) -> datetime | None:
        """From ``boundary`` on, the first boundary that is later than ``now``."""
        return self._within(self.spec.due(boundary, now, 0).next)

    def firing(
        self,
        boundary: datetime,
        now: datetime,
        alive: bool = False,
        on_time: timedelta | None = None,
    ) -> Firing:
        """What to do ``now`` about the boundaries from ``boundary`` on.

        ``alive``: whether the last job is. ``on_time``: for how long a boundary is not missed.
        """
        until = now if self.ends_at is None else min(now, self.ends_at)
        allowed = timedelta(seconds=ON_TIME_SECONDS) if on_time is None else on_time
        # Of those that queue up, the earliest have waited longest in vain.
        queued = self.overlap == "queue" and self.catch_up == "all"
        catch_up = _newest if queued else CATCH_UPS[self.catch_up]
        found = catch_up(self.spec, boundary, until, now - allowed)
        return self._within_life(OVERLAPS[self.overlap](found, alive))

    def upcoming(self, boundary: datetime | None) -> Iterator[datetime]:
        """The boundaries from ``boundary`` on, as long as there are any."""
        fires = self.fires
        if boundary is not None:  # it may be none of the spec's any more, or lie beyond the end
            boundary = self.after(boundary, boundary - timedelta.resolution)
        while boundary is not None and (self.max_fires is None or fires < self.max_fires):
            yield boundary
            boundary, fires = self.after(boundary, boundary), fires + 1

    def _within(self, boundary: datetime) -> datetime | None:
        ended = self.ends_at is not None and boundary > self.ends_at
        used_up = self.max_fires is not None and self.fires >= self.max_fires
        return None if ended or used_up else boundary

    def _within_life(self, found: Firing) -> Firing:
        if self.max_fires is not None and self.fires + len(found.boundaries) >= self.max_fires:
            left = max(0, self.max_fires - self.fires)
            return replace(found, boundaries=found.boundaries[:left], next=None, skipped=0)
        return replace(found, next=found.next and self._within(found.next))


def jittered(name: str, boundary: datetime, jitter: float) -> datetime:
    """When the job of a boundary is to run: up to ``jitter`` seconds after it, always as many."""
    if not jitter:
        return boundary
    seed = f"{name} {boundary.astimezone(timezone.utc).isoformat()}"
    part = int.from_bytes(blake2b(seed.encode(), digest_size=6).digest(), "big") / 2**48
    return boundary + timedelta(seconds=jitter * part)


# -- at the door ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a schedule was asked to do, checked: what its row holds but for the scheduler's part.

    ``options`` are those given for its jobs; one that is not there is the target queue's.
    """

    spec: str
    queue: str
    payload: Any = None
    timezone: str | None = None
    catch_up: str = "all"
    overlap: str = "allow"
    jitter: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_fires: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, Any]:
        """What to write on the row; an option that is null is the target queue's."""
        own = {name: getattr(self, name) for name in ("spec", "queue", "payload", *TIMES)}
        return own | dict.fromkeys(OPTIONS) | dict(self.options)

    def timetable(self, fires: int = 0) -> Timetable:
        """When it fires, having fired so often."""
        spec = parse_spec(self.spec, self.timezone)
        return Timetable(spec, self.catch_up, self.overlap, self.starts_at, self.ends_at,
                         self.max_fires, fires)  # fmt: skip


def plan(spec: object, queue: object, payload: object = None, **given: Any) -> Plan:
    """Check what a schedule is asked to do.

    Raises InvalidName, ReservedName, InvalidSpec, InvalidPayload, InvalidOption, and TypeError for
    a name that is no option.
    """
    queue = valid_name("queue", queue)
    own = {name: checked_time(name, given[name]) for name in TIMES if name in given}
    parse_spec(spec, own.get("timezone"))
    options = checked({name: value for name, value in given.items() if name not in TIMES})
    made = Plan(str.__str__(spec), queue, decode(encode(payload)), **own, options=options)
    if made.starts_at and made.ends_at and made.ends_at < made.starts_at:
        wanted = f"no earlier than starts_at ({made.starts_at.isoformat()})"
        raise InvalidOption(expected("ends_at", wanted, made.ends_at.isoformat()))
    return made


def checked_time(name: str, value: object) -> Any:
    """Return the value of one of ``TIMES`` as it is stored; raises InvalidOption for a wrong one."""
    return _CHECKS[name](name, value)


def _zone_name(what: str, value: object) -> str | None:
    if value is None:
        return None
    name = zone_of(value).key
    if name is None:
        raise InvalidOption(expected(what, "a time zone that has a name", value))
    return name


def _one_of(words: Mapping[str, object]) -> Callable[[str, object], str]:
    def check(what: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise InvalidOption(expected(what, f"one of {', '.join(map(repr, words))}", value))
        return str.__str__(value)

    return check


def _instant(what: str, value: object) -> datetime | None:
    return None if value is None else instant_option(what, value)


def _number(what: str, value: object) -> int | None:
    return None if value is None else whole_number(what, value, 1)


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "timezone": _zone_name,
    "catch_up": _one_of(CATCH_UPS),
    "overlap": _one_of(OVERLAPS),
    "jitter": seconds,
    "starts_at": _instant,
    "ends_at": _instant,
    "max_fires": _number,
}
TIMES = tuple(_CHECKS)  # what a schedule may be told beside its jobs' options
