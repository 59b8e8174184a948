"""What a schedule's spec means: ``@every <n><unit>``, unit ``s``, ``m``, ``h`` or ``d``.

An interval is exact time, not wall-clock time: boundary k is the first plus k intervals, across
clock changes too. Pure arithmetic on instants: nothing here reads a clock or a database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from .backoff import MAX_SECONDS
from .exceptions import InvalidSpec, expected

SPEC_MAX = 255
_EVERY = re.compile(r"@every ([1-9][0-9]{0,11})([smhd])", re.ASCII)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class Due:
    """What a late look finds: the boundaries to fire, the next one, and how many are skipped."""

    boundaries: list[datetime]
    next: datetime
    skipped: int


@dataclass(frozen=True)
class Every:
    """``@every``: a grid of instants, ``interval`` apart, through any one of them."""

    interval: timedelta

    def first_after(self, now: datetime) -> datetime:
        """The first boundary of a schedule that begins ``now``."""
        return now + self.interval

    def due(self, boundary: datetime, now: datetime, limit: int) -> Due:
        """The boundaries from ``boundary`` up to and with ``now``, oldest first, at most ``limit``.

        The next one is the first after ``now`` on the same grid, whatever was skipped.
        """
        if boundary > now:
            return Due([], boundary, 0)
        reached = (now - boundary) // self.interval + 1
        fired = min(reached, limit)
        boundaries = [boundary + k * self.interval for k in range(fired)]
        try:
            following = boundary + reached * self.interval
        except OverflowError as exc:
            got = f"{boundary} + {reached} * {self.interval}"
            raise InvalidSpec(expected("the next boundary", "before 10000 AD", got)) from exc
        return Due(boundaries, following, reached - fired)


def parse_spec(spec: object) -> Every:
    """Return what ``spec`` means, or raise InvalidSpec.

    >>> parse_spec("@every 90s").interval
    datetime.timedelta(seconds=90)
    """
    wanted = "'@every <n><unit>' with n a positive integer and unit s, m, h or d"
    match = _EVERY.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        raise InvalidSpec(expected("a spec", wanted, spec))
    length = int(match[1]) * _UNIT_SECONDS[match[2]]
    if length > MAX_SECONDS:
        raise InvalidSpec(expected("a spec's interval", f"at most {MAX_SECONDS} seconds", spec))
    return Every(timedelta(seconds=length))
