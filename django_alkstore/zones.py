"""Time zones: real time cut into stretches in which a zone's clocks run evenly.

Real time and wall-clock time are both whole seconds here, counted from the start of the year 1 (of
UTC, and on the wall), so that no arithmetic overflows: a wall second is a real second plus the
offset. The limit: of two clock changes within one day that cancel each other, neither is seen.
No zone has ever had two within three days.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from django.utils.timezone import get_default_timezone

from .exceptions import InvalidOption, expected

DAY = 86_400
_START = datetime.min.replace(tzinfo=timezone.utc)
_SECOND = timedelta(seconds=1)
_END = (datetime.max.replace(tzinfo=timezone.utc) - _START) // _SECOND
_EDGE = 2 * DAY  # more than any offset: nearer the ends of the calendar, local time may overflow
_FIRST_CHANGE = (datetime(1800, 1, 1, tzinfo=timezone.utc) - _START) // _SECOND  # none before


@dataclass(frozen=True)
class Stretch:
    """The real seconds from ``begin`` up to ``end``, in which the zone has one offset from UTC."""

    begin: int
    end: int
    offset: int


def zone_of(value: object) -> ZoneInfo:
    """Return the zone with that IANA name, or the ZoneInfo as given; None is settings.TIME_ZONE.

    Raises InvalidOption for what names no zone. They are read from the system's tz database, or
    the ``tzdata`` package where there is none.
    """
    if value is None:
        return get_default_timezone()
    if isinstance(value, ZoneInfo):
        return value
    try:
        return ZoneInfo(str.__str__(value))
    except (TypeError, KeyError, ValueError, OSError):
        wanted = "the IANA name of a time zone, such as 'Europe/London'"
        raise InvalidOption(expected("timezone", wanted, value)) from None


def second_of(instant: datetime) -> int:
    """The real second in which the (aware) instant falls."""
    return (instant - _START) // _SECOND


def second_from(instant: datetime) -> int:
    """The first real second that does not begin before the (aware) instant."""
    return -((_START - instant) // _SECOND)


def instant_of(second: int) -> datetime:
    """The start of a real second, in UTC. Raises OverflowError after the year 9999."""
    return _START + timedelta(seconds=second)


def offset_at(zone: ZoneInfo, second: int) -> int:
    """Seconds that the zone's clocks are ahead of UTC."""
    within = min(max(second, _EDGE), _END - _EDGE)
    offset = instant_of(within).astimezone(zone).utcoffset()
    return offset // _SECOND


def stretches(zone: ZoneInfo, begin: int, end: int) -> Iterator[Stretch]:
    """The real seconds from ``begin`` up to ``end``, cut where the zone's offset changes."""
    at, offset = max(begin, min(_FIRST_CHANGE, end - 1)), offset_at(zone, begin)
    while at < end - 1:
        ahead = min(at + DAY, end - 1)
        if offset_at(zone, ahead) == offset:
            at = ahead
            continue
        at = _change(zone, at, ahead)
        yield Stretch(begin, at, offset)
        begin, offset = at, offset_at(zone, at)
    yield Stretch(begin, end, offset)


def _change(zone: ZoneInfo, before: int, after: int) -> int:
    """The second at which the offset of ``before`` ends, which ``after`` has no more."""
    old = offset_at(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if offset_at(zone, middle) == old:
            before = middle
        else:
            after = middle
    return after
