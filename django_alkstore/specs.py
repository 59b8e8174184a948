"""What a schedule's spec means.

``@every <n><unit>``, unit ``s``, ``m``, ``h`` or ``d``, is exact time, not wall-clock time:
boundary k is the first plus k intervals, across clock changes too.

``@cron <fields>`` (see ``cron``) is the wall clock of a time zone. A time of day that a clock
change leaves out counts at the first instant after it, once however many were left out; one that
comes twice counts the first time. But a spec whose hour field begins with ``*`` follows real time:
it counts whenever the clock shows a time that it names, and only then.

Pure arithmetic on instants: nothing here reads a clock or a database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from .backoff import MAX_SECONDS
from .cron import Pattern, parse_pattern
from .exceptions import InvalidSpec, expected
from .zones import DAY, instant_of, offset_at, second_from, second_of, stretches, zone_of

SPEC_MAX = 255
_EVERY = re.compile(r"@every ([1-9][0-9]{0,11})([smhd])", re.ASCII)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_CRON = "@cron "
# More than any clock change plus any offset: what a clock has shown for so long, or will show
# after so long, no change brings back.
_MARGIN = 2 * DAY


@dataclass(frozen=True)
class Due:
    """What a late look finds: the boundaries to fire, the next one, and how many are skipped."""

    boundaries: list[datetime]
    next: datetime
    skipped: int


class Spec(Protocol):
    """What every spec can say. All instants are aware, and those returned are in UTC."""

    def first_after(self, now: datetime) -> datetime:
        """The first boundary of a schedule that begins ``now``."""

    def due(self, boundary: datetime, now: datetime, limit: int) -> Due:
        """The boundaries from ``boundary`` up to and with ``now``, oldest first, at most ``limit``.

        The next one is the first after ``now``, whatever was skipped.
        """

    def last_until(self, boundary: datetime, now: datetime, limit: int) -> list[datetime]:
        """The last ``limit`` boundaries from ``boundary`` up to and with ``now``, oldest first."""


@dataclass(frozen=True)
class Every:
    """``@every``: a grid of instants, ``interval`` apart, through any one of them."""

    interval: timedelta

    def first_after(self, now: datetime) -> datetime:
        """The first boundary of a schedule that begins ``now``."""
        return self._along(now, 1)

    def due(self, boundary: datetime, now: datetime, limit: int) -> Due:
        """As ``Spec.due``; the grid is the one through ``boundary``."""
        if boundary > now:
            return Due([], boundary, 0)
        reached = (now - boundary) // self.interval + 1
        fired = min(reached, limit)
        boundaries = [boundary + k * self.interval for k in range(fired)]
        return Due(boundaries, self._along(boundary, reached), reached - fired)

    def last_until(self, boundary: datetime, now: datetime, limit: int) -> list[datetime]:
        """As ``Spec.last_until``."""
        reached = (now - boundary) // self.interval + 1
        return [boundary + k * self.interval for k in range(max(0, reached - limit), reached)]

    def _along(self, boundary: datetime, k: int) -> datetime:
        try:
            return boundary + k * self.interval
        except OverflowError as exc:
            raise _beyond(f"{boundary} + {k} * {self.interval}") from exc


@dataclass(frozen=True)
class Showing:
    """Wall seconds that count, from ``begin`` up to ``end``, each at itself minus ``offset``.

    ``landing``: so does ``begin``, for the times that a clock change has left out before it.
    """

    begin: int
    end: int
    offset: int
    landing: bool


@dataclass(frozen=True)
class Cron:
    """``@cron``: when the clocks of ``zone`` show what ``pattern`` names."""

    pattern: Pattern
    zone: ZoneInfo

    def first_after(self, now: datetime) -> datetime:
        """The first boundary of a schedule that begins ``now``."""
        return self.next_after(now)

    def next_after(self, instant: datetime) -> datetime:
        """The first boundary that is later than ``instant``."""
        return _instant(self._first_from(second_of(instant) + 1))

    def due(self, boundary: datetime, now: datetime, limit: int) -> Due:
        """As ``Spec.due``. If ``boundary`` is none of this spec's, the first after it counts."""
        at, end = self._first_from(second_from(boundary)), second_of(now) + 1
        boundaries = []
        while at < end and len(boundaries) < limit:
            boundaries.append(_instant(at))
            at = self._first_from(at + 1)
        if at >= end:
            return Due(boundaries, _instant(at), 0)
        following = _instant(self._first_from(end))
        return Due(boundaries, following, self._count(at, end))

    def last_until(self, boundary: datetime, now: datetime, limit: int) -> list[datetime]:
        """As ``Spec.last_until``; looks back further and further."""
        first, end = second_from(boundary), second_of(now) + 1
        begin = end
        found: list[int] = []
        while len(found) < limit and begin > first:
            begin = max(first, end - 8 * (end - begin or limit))
            found = list(self._boundaries(begin, end))
        return [_instant(at) for at in found[-limit:]]

    def _first_from(self, begin: int) -> int:
        """The first boundary that is not before a real second, as a real second.

        Looks at the clocks of the days around it, and in between at the calendar alone.
        """
        while True:
            end = begin + _MARGIN
            for boundary in self._boundaries(begin, end):
                return boundary
            wall = self.pattern.first_from(end + offset_at(self.zone, end - 1))
            if wall is None:
                raise _beyond(f"none after {_instant(begin)}")
            begin = max(end, wall - DAY)

    def _boundaries(self, begin: int, end: int) -> Iterator[int]:
        """The boundaries from ``begin`` up to ``end``."""
        for showing in self._showings(begin, end):
            if showing.landing:
                yield showing.begin - showing.offset
            wall = self.pattern.first_from(showing.begin)
            while wall is not None and wall < showing.end:
                yield wall - showing.offset
                wall = self.pattern.first_from(wall + 1)

    def _count(self, begin: int, end: int) -> int:
        """How many boundaries there are from ``begin`` up to ``end``, without a look at each."""
        return sum(
            showing.landing + self.pattern.count(showing.begin, showing.end)
            for showing in self._showings(begin, end)
        )

    def _showings(self, begin: int, end: int) -> Iterator[Showing]:
        """What the clocks show in real time from ``begin`` up to ``end``, as far as it counts."""
        shown = None  # the clocks have been that far
        for stretch in stretches(self.zone, begin - _MARGIN, end):
            first, last = stretch.begin + stretch.offset, stretch.end + stretch.offset
            if shown is None or self.pattern.every_hour:
                shown = first
            landing = stretch.begin >= begin and self._only_between(shown, first)
            counted = max(first, shown, begin + stretch.offset)
            yield Showing(counted, last, stretch.offset, landing)
            shown = max(shown, last)

    def _only_between(self, begin: int, end: int) -> bool:
        """Whether wall seconds from ``begin`` up to ``end`` are named, and ``end`` is not."""
        if begin >= end:
            return False
        wall = self.pattern.first_from(begin)
        return wall is not None and wall < end and self.pattern.first_from(end) != end


def parse_spec(spec: object, zone: object = None) -> Every | Cron:
    """Return what ``spec`` means in ``zone``, a ZoneInfo or the IANA name of one.

    Without one, ``@cron`` goes by settings.TIME_ZONE. Raises InvalidSpec, and InvalidOption for
    what is no zone.

    >>> parse_spec("@every 90s").interval
    datetime.timedelta(seconds=90)
    """
    clocks = None if zone is None else zone_of(zone)
    if not isinstance(spec, str):
        raise _no_spec(spec)
    if len(spec) > SPEC_MAX:
        raise InvalidSpec(expected("a spec", f"at most {SPEC_MAX} characters", spec))
    text = str.__str__(spec)
    if text.startswith(_CRON):
        return Cron(parse_pattern(text.removeprefix(_CRON)), clocks or zone_of(None))
    return _parse_every(text)


def _parse_every(text: str) -> Every:
    match = _EVERY.fullmatch(text)
    if match is None:
        raise _no_spec(text)
    length = int(match[1]) * _UNIT_SECONDS[match[2]]
    if length > MAX_SECONDS:
        raise InvalidSpec(expected("a spec's interval", f"at most {MAX_SECONDS} seconds", text))
    return Every(timedelta(seconds=length))


def _no_spec(got: object) -> InvalidSpec:
    forms = (
        "'@every <n><unit>' with n a positive integer and unit s, m, h or d, or '@cron <fields>'"
    )
    return InvalidSpec(expected("a spec", forms + _meant(got), got))


def _meant(got: object) -> str:
    """What to write instead of a bare cron line."""
    try:
        parse_pattern(got)
    except (InvalidSpec, AttributeError, TypeError):
        return ""
    return f" (did you mean {_CRON + got!r}?)"


def _instant(second: int) -> datetime:
    try:
        return instant_of(second)
    except OverflowError as exc:
        raise _beyond("the year 10000") from exc


def _beyond(got: str) -> InvalidSpec:
    return InvalidSpec(expected("the next boundary", "before 10000 AD", got))
