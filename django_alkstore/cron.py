"""Cron patterns: which seconds of a wall clock the five or six fields name.

The fields, with one space between: (second,) minute, hour, day of the month, month, day of the
week. Each is a list of values, ranges ``a-b`` and ``*``; the last two take ``/step``. Months and
days of the week have names of three letters, in any case; 0 and 7 are both Sunday, and a range may
end in SUN. ``L`` is the last day of the month, and in the two day fields ``?`` is another ``*``.
Without a second it is second 0.

A day field that begins with ``*`` or ``?`` restricts nothing, as in Vixie cron, so ``*/2`` does
not. Where both day fields restrict, a day needs to be named by either; else by both.

Pure arithmetic, field by field: no search steps through seconds, minutes or days. Wall seconds are
counted as in ``zones``.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import MAXYEAR, date

from .exceptions import InvalidSpec, expected
from .zones import DAY

_LAST = 1  # bit 0 of the days of the month, of which none is 0, stands for L
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SIX_WEEKS = sum(1 << 7 * week for week in range(6))
_ITEM = re.compile(r"(?:[*?]|([0-9]{1,2}|[A-Z]{3})(?:-([0-9]{1,2}|[A-Z]{3}))?)(?:/([0-9]{1,2}))?")


@dataclass(frozen=True)
class Field:
    """One field's grammar. Its values become a set of bits: bit 5 is set for the value 5."""

    name: str
    lowest: int
    highest: int
    names: tuple[str, ...] = ()
    is_day: bool = False

    def bits(self, text: str) -> int:
        """Return the values that ``text`` names, or raise InvalidSpec."""
        bits = 0
        for item in text.upper().split(","):
            values = self._values(item) if text.isascii() else ()
            if not values:
                raise InvalidSpec(expected(f"the {self.name} field of a spec", self._wanted, text))
            bits |= sum(1 << value for value in values)
        return bits

    @property
    def _wanted(self) -> str:
        named = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"*, or values from {self.lowest} to {self.highest}{named}, ranges, lists and steps"

    def _values(self, item: str) -> range | tuple[int, ...]:
        """The values of one list item; none if it is not in the grammar."""
        if item == "L" and self.highest == 31:
            return (0,)
        match = _ITEM.fullmatch(item)
        if match is None or (item[0] == "?" and not self.is_day):
            return ()
        first, last, step = match.groups()
        if step and (not 0 < int(step) <= self.highest - self.lowest or (first and not last)):
            return ()
        low = self._value(first) if first else self.lowest
        high = self._value(last) if last else low if first else self.highest
        if last == "SUN" and low > 0:  # the Sunday at the end of a week, as in FRI-SUN
            high = 7
        if not self.lowest <= low <= high <= self.highest:
            return ()
        return range(low, high + 1, int(step or 1))

    def _value(self, word: str) -> int:
        if word in self.names:
            return self.lowest + self.names.index(word)
        return int(word) if word.isdigit() else -1


MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
FIELDS = (
    Field("second", 0, 59),
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day-of-month", 1, 31, is_day=True),
    Field("month", 1, 12, MONTHS),
    Field("day-of-week", 0, 7, WEEKDAYS, is_day=True),
)


@dataclass(frozen=True)
class Pattern:
    """The values of each field, as bits, and what its wildcards say.

    ``either``: a day is named by one of the day fields, not by both. ``every_hour``: the hour
    field begins with ``*``.
    """

    seconds: int
    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    either: bool
    every_hour: bool

    def first_from(self, second: int) -> int | None:
        """The first wall second named, from ``second`` on; None if the calendar ends before."""
        day, time = divmod(max(second, 0), DAY)
        if self._has_day(day):
            found = self._time_from(time)
            if found is not None:
                return day * DAY + found
        day = self._day_from(day + 1)
        return None if day is None else day * DAY + self._time_from(0)

    def count(self, begin: int, end: int) -> int:
        """How many wall seconds are named from ``begin`` up to ``end``, both in the calendar."""
        if end <= begin:
            return 0
        (first, missed), (last, reached) = divmod(begin, DAY), divmod(end, DAY)
        times = self._days_between(first, last) * self._times_before(DAY)
        times -= self._times_before(missed) if self._has_day(first) else 0
        return times + (self._times_before(reached) if self._has_day(last) else 0)

    # -- times of the day -----------------------------------------------------------------------

    def _time_from(self, time: int) -> int | None:
        """The first time of the day that is named, from ``time`` on, in seconds."""
        hour, minute, second = time // 3600, time // 60 % 60, time % 60
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1:
                found = _first(self.seconds, second)
                if found is not None:
                    return hour * 3600 + minute * 60 + found
            found = _first(self.minutes, minute + 1)
            if found is not None:
                return hour * 3600 + found * 60 + _first(self.seconds, 0)
        found = _first(self.hours, hour + 1)
        if found is None:
            return None
        return found * 3600 + _first(self.minutes, 0) * 60 + _first(self.seconds, 0)

    def _times_before(self, time: int) -> int:
        """How many times of the day are named before ``time``."""
        hour, minute, second = time // 3600, time // 60 % 60, time % 60
        seconds, minutes = self.seconds.bit_count(), self.minutes.bit_count()
        times = _count_below(self.hours, hour) * minutes * seconds
        if self.hours >> hour & 1:
            times += _count_below(self.minutes, minute) * seconds
            if self.minutes >> minute & 1:
                times += _count_below(self.seconds, second)
        return times

    # -- days, counted from the first of the year 1 ----------------------------------------------

    def _has_day(self, day: int) -> bool:
        at = _date(day)
        return at is not None and bool(self._days_of(at.year, at.month) >> at.day & 1)

    def _day_from(self, day: int) -> int | None:
        """The first day that is named, from ``day`` on: a look at each month of a leap cycle."""
        at = _date(day)
        if at is None:
            return None
        year, month, monthday = at.year, at.month, at.day
        while year <= MAXYEAR:
            found = _first(self._days_of(year, month), monthday)
            if found is not None:
                return date(year, month, found).toordinal() - 1
            following = _first(self.months, month + 1)
            year, month = (year, following) if following else (year + 1, _first(self.months, 0))
            monthday = 1
        return None

    def _days_between(self, begin: int, end: int) -> int:
        """How many days are named from ``begin`` up to ``end``."""
        first, last = _date(begin), _date(end)
        year, month, days = first.year, first.month, 0
        while (year, month) < (last.year, last.month):
            days += self._days_of(year, month).bit_count()
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        days -= _count_below(self._days_of(first.year, first.month), first.day)
        return days + _count_below(self._days_of(last.year, last.month), last.day)

    def _days_of(self, year: int, month: int) -> int:
        """The days that are named in a month, as bits."""
        if not self.months >> month & 1:
            return 0
        weekday, length = monthrange(year, month)
        weeks = self.weekdays * _SIX_WEEKS >> (weekday + 1) % 7 << 1  # bit 1 is the month's first
        days = self.days | 1 << length if self.days & _LAST else self.days
        return (days | weeks if self.either else days & weeks) & (2 << length) - 2


def parse_pattern(text: str) -> Pattern:
    """Return the pattern of five or six fields.

    Raises InvalidSpec for what is not in the grammar, and for a date that no year has.
    """
    fields = text.split(" ")
    if len(fields) not in (5, 6) or not all(fields):
        wanted = "five or six fields with one space between"
        raise InvalidSpec(expected("what follows @cron in a spec", wanted, text))
    fields = ["0"] * (6 - len(fields)) + fields
    values = [field.bits(text) for field, text in zip(FIELDS, fields, strict=True)]
    values[5] = (values[5] | values[5] >> 7) & 0x7F  # 7 is Sunday too
    either = fields[3][0] not in "*?" and fields[5][0] not in "*?"
    pattern = Pattern(*values, either=either, every_hour=fields[2][0] == "*")
    if not either and not _has_a_date(pattern):
        wanted = "a day that one of its months has"
        raise InvalidSpec(expected("the day-of-month field of a spec", wanted, text))
    return pattern


def _has_a_date(pattern: Pattern) -> bool:
    """Whether a date is ever named, in 400 years: each falls on every day of the week by then."""
    months = (month for month in range(1, 13) if pattern.months >> month & 1)
    longest = max(_LONGEST[month - 1] for month in months)
    return bool(pattern.days & _LAST) or _first(pattern.days, 1) <= longest


def _first(bits: int, lowest: int) -> int | None:
    """The smallest value in the set, from ``lowest`` on."""
    above = bits >> lowest
    return lowest + (above & -above).bit_length() - 1 if above else None


def _count_below(bits: int, value: int) -> int:
    return (bits & (1 << value) - 1).bit_count()


def _date(day: int) -> date | None:
    """The date; None after the end of the calendar."""
    return date.fromordinal(day + 1) if day < date.max.toordinal() else None
