"""Cron by brute force, to compare with: asks each instant what the clocks show, and looks it up.

Shares no arithmetic with the package. A cron line is made at random together with the values that
it names, so nothing is parsed here, and time zones are what ``zoneinfo`` says of one instant after
another. The suite runs a part; by hand, for as long as you like:

    python -m tests.cron_oracle --seed 1 --specs 20 --rounds 3
"""

import argparse
import random
import sys
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from django_alkstore.exceptions import InvalidSpec
from django_alkstore.specs import parse_spec

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = 86_400
HISTORY = 26 * 3600  # longer than any clock change, so that a repetition is known for one
ZONES = [
    "UTC", "Europe/London", "America/New_York", "America/Sao_Paulo", "Africa/Casablanca",
    "Asia/Gaza", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham", "America/St_Johns",
    "Asia/Tehran", "Africa/Cairo", "Antarctica/Troll", "America/Scoresbysund", "Asia/Kathmandu",
    "Pacific/Kiritimati",
]  # fmt: skip
YEARS = range(1972, 2040)
WALKED = 400  # so many boundaries are walked through one by one
ODD_MINUTES = [
    ("Australia/Lord_Howe", "2025-04-05", "half an hour twice"),
    ("Australia/Lord_Howe", "2025-10-04", "half an hour missing"),
    ("Pacific/Apia", "2011-12-30", "a whole day missing"),
    ("Pacific/Kwajalein", "1993-08-21", "a whole day missing"),
    ("Pacific/Chatham", "2025-09-27", "an hour missing at 02:45"),
    ("Africa/Casablanca", "2025-02-23", "the first of two changes in six weeks"),
    ("Africa/Casablanca", "2025-04-06", "the second"),
    ("America/Sao_Paulo", "2018-11-04", "no midnight"),
    ("America/Sao_Paulo", "2018-02-18", "an hour before midnight twice"),
    ("America/New_York", "2025-03-09", "forward"),
    ("America/New_York", "2025-11-02", "back"),
    ("Europe/London", "2025-03-30", "forward"),
    ("Europe/London", "2025-10-26", "back"),
    ("Africa/Freetown", "1939-09-03", "two changes in four days"),
    ("Antarctica/Troll", "2025-03-30", "two hours missing"),
    ("UTC", "2024-02-29", "nothing odd but the day"),
]
ODD_SECONDS = [
    ("Africa/Monrovia", "1972-01-07", "44 minutes and 30 seconds missing"),
    ("Europe/Amsterdam", "1937-07-01", "28 seconds missing"),
    ("America/Juneau", "1867-10-19", "a whole day twice"),
    ("Asia/Manila", "1844-12-31", "a whole day missing"),
    ("America/New_York", "1883-11-18", "3 minutes and 58 seconds twice"),
]
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


# -- cron lines -----------------------------------------------------------------------------------


@dataclass
class Line:
    """A cron line and the values that it names, made together."""

    fields: list[str] = field(default_factory=list)
    values: list[set[int | str]] = field(default_factory=list)

    def __str__(self):
        return " ".join(self.fields)

    @property
    def follows_real_time(self):
        return self.fields[-4].startswith("*")

    def names_day(self, day):
        days, months, weekdays = self.values[-3:]
        is_last = (day + timedelta(days=1)).month != day.month
        by_date = day.day in days or ("L" in days and is_last)
        by_weekday = day.isoweekday() % 7 in weekdays
        wild = [text for text in (self.fields[-3], self.fields[-1]) if text[0] in "*?"]
        named = (by_date and by_weekday) if wild else (by_date or by_weekday)
        return named and day.month in months

    def has_a_day(self):
        return any(self.names_day(date(2000, 1, 1) + timedelta(days=n)) for n in range(40 * 366))

    def times(self):
        """Every time of day that is named, in seconds."""
        *seconds, minutes, hours = self.values[:-3]
        return {
            hour * 3600 + minute * 60 + second
            for hour in hours
            for minute in minutes
            for second in (seconds[0] if seconds else [0])
        }


def random_line(rng, near, with_seconds):
    """A line that has something to say about the days around ``near``, as a rule."""
    line = Line()
    fields = [(0, 59)] * with_seconds + [(0, 59), (0, 23)]
    for low, high in fields:
        add(line, rng, low, high, rng.choice([0.1, 0.4]))
    if line.fields[-1][0] != "*" and rng.random() < 0.6:  # the hours that clock changes concern
        hours = {rng.randrange(5) for _ in range(2)}
        line.fields[-1], line.values[-1] = ",".join(map(str, hours)), hours
    add(line, rng, 1, 31, 0.6, wild="*?", around=[near.day, (near + timedelta(days=1)).day, "L"])
    add(line, rng, 1, 12, 0.7, names=MONTHS, around=[near.month, near.month])
    add(line, rng, 0, 7, 0.6, names=WEEKDAYS, wild="*?", around=[near.isoweekday() % 7])
    return line


def add(line, rng, low, high, wild_share, wild="*", names=(), around=()):
    """Add a field: wild, or of one to three items."""
    if rng.random() < wild_share:
        items = [wild_item(rng, low, high, rng.choice(wild))]
    else:
        items = [random_item(rng, low, high, wild, names) for _ in range(rng.choice([1, 1, 2, 3]))]
        items += [spelled(rng, value, names) for value in around if rng.random() < 0.4]
    line.fields.append(",".join(text for text, _ in items))
    line.values.append(set().union(*(values for _, values in items)))


def wild_item(rng, low, high, sign):
    step = rng.choice([1, 2, 3, 5, 7, high - low])
    if rng.random() < 0.5 or not 0 < step <= high - low:
        return sign, set(range(low, high + 1))
    return f"{sign}/{step}", set(range(low, high + 1, step)) - ({7} if high == 7 else set())


def random_item(rng, low, high, wild, names):
    """A value, a range or a range with a step, now and then a wild one."""
    kind = rng.random()
    if kind < 0.1:
        return wild_item(rng, low, high, rng.choice(wild))
    first, last = sorted(rng.randint(low, high) for _ in range(2))
    if kind < 0.6:
        return spelled(rng, first, names)
    step = rng.randint(1, min(high - low, 9))
    text, every = (f"/{step}", step) if kind < 0.8 else ("", 1)
    values = {value % 7 if high == 7 else value for value in range(first, last + 1, every)}
    start = spelled(rng, first, names if first < 7 or high != 7 else ())[0]
    end = spelled(rng, last, names if first or high != 7 else ())[0]
    return f"{start}-{end}{text}", values


def spelled(rng, value, names):
    """One value as people write it: a number, perhaps with a 0 before it, or a name in any case."""
    if value == "L":
        return rng.choice("lL"), {"L"}
    values = {value % 7} if len(names) == 7 else {value}
    if not names or rng.random() < 0.5:
        return (f"{value:02}" if rng.random() < 0.2 else str(value)), values
    name = names[value % 7] if len(names) == 7 else names[value - 1]
    return "".join(rng.choice([letter, letter.upper()]) for letter in name), values


# -- clocks ---------------------------------------------------------------------------------------


class Clock:
    """What the clocks of a zone show at every instant of a period, a minute or a second apart.

    Boundaries are known from ``start`` on, after the history that tells a repetition.
    """

    def __init__(self, zone, begin, end, step):
        self.zone, self.step = zone, step
        self.start, self.end = seconds(begin), seconds(end)
        self.begin = self.start - HISTORY
        self.shown = {}  # by date: the instant and the time of day, in seconds
        self.again = set()  # the instants whose local time has been shown before
        self.left_out = {}  # by instant: the local times that the clocks jumped over
        self.look()

    @property
    def instants(self):
        return (self.end - self.begin) // self.step

    def look(self):
        seen, before = set(), None
        for at in range(self.begin, self.end, self.step):
            local = datetime.fromtimestamp(at, self.zone).replace(tzinfo=None)
            assert local.second % self.step == 0, "seconds matter here: take a step of 1"
            time = local.hour * 3600 + local.minute * 60 + local.second
            self.shown.setdefault(local.date(), []).append((at, time))
            if local in seen:
                self.again.add(at)
            seen.add(local)
            if before is not None and local - before > timedelta(seconds=self.step):
                self.left_out[at] = self.between(before, local)
            before = local
        for at, missing in self.left_out.items():
            self.left_out[at] = [local for local in missing if local not in seen]

    def between(self, before, after):
        count = int((after - before).total_seconds()) // self.step
        return [before + timedelta(seconds=self.step * k) for k in range(1, count)]

    def boundaries(self, line):
        """The instants at which the line runs, by the rules for clock changes."""
        times = line.times()
        found = {
            at
            for day, shown in self.shown.items()
            if line.names_day(day)
            for at, time in shown
            if time in times and (line.follows_real_time or at not in self.again)
        }
        if not line.follows_real_time:
            found |= {at for at, missing in self.left_out.items() if self.any_of(line, missing)}
        return sorted(at for at in found if at >= self.start)

    def any_of(self, line, missing):
        times = line.times()
        return any(
            local.hour * 3600 + local.minute * 60 + local.second in times
            and line.names_day(local.date())
            for local in missing
        )

    def moments(self, rng, boundaries, count):
        """Instants to ask about: anywhere, at and beside boundaries and clock changes."""
        changes = [*self.left_out, *self.again]
        for _ in range(count):
            near = rng.choice([boundaries, changes, None])
            at = rng.choice(near) + rng.choice([-1, 0, 1, 1800]) if near else 0
            if not self.start <= at < self.end:
                at = rng.randrange(self.start, self.end)
            yield at + rng.choice([0, 0, 0.25, 0.999999])


def seconds(instant):
    return int((instant - EPOCH).total_seconds())


def instant(at):
    return EPOCH + timedelta(microseconds=round(at * 10**6))


# -- the comparison -------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was compared, and what differed."""

    zones: set[str] = field(default_factory=set)
    specs: int = 0
    instants: int = 0
    boundaries: int = 0
    looks: int = 0
    differences: list[str] = field(default_factory=list)

    def __str__(self):
        return (
            f"{len(self.zones)} zones, {self.specs:,} specs, {self.instants:,} instants looked up, "
            f"{self.boundaries:,} boundaries, {self.looks:,} answers compared, "
            f"{len(self.differences)} differences"
        )


def compare(tally, clock, line, rng, looks=12):
    """Ask the package about instants of the clock's period, and note each answer that differs."""
    try:
        cron = parse_spec(f"@cron {line}", clock.zone)
    except InvalidSpec:
        if line.has_a_day():
            tally.differences.append(f"{line} is refused")
        return
    boundaries = clock.boundaries(line)
    tally.zones.add(clock.zone.key)
    tally.specs += 1
    tally.instants += clock.instants
    tally.boundaries += len(boundaries)
    if len(boundaries) <= WALKED:
        check_walk(tally, cron, line, boundaries, clock)
    for at in clock.moments(rng, boundaries, looks):
        check_next(tally, cron, line, boundaries, clock, at)
    for at in clock.moments(rng, boundaries, looks // 2):
        ends = [clock.end - 1, at + rng.expovariate(1 / 7200), rng.choice(boundaries or [at])]
        until = min(max(at, rng.choice(ends)), clock.end - 1)
        check_due(tally, cron, line, boundaries, clock, at, until, rng.choice([0, 1, 64]))


def check_walk(tally, cron, line, boundaries, clock):
    at, walked = instant(clock.start - 0.5), []
    while (at := cron.next_after(at)) < instant(clock.end):
        walked.append(at)
    tally.looks += len(walked) + 1
    if walked != [instant(boundary) for boundary in boundaries]:
        tally.differences.append(f"{clock.zone.key} {line}: walked {walked[:9]}...")


def check_next(tally, cron, line, boundaries, clock, at):
    got = cron.next_after(instant(at))
    index = bisect_right(boundaries, at)
    wanted = instant(boundaries[index]) if index < len(boundaries) else None
    tally.looks += 1
    if got != wanted if wanted else got < instant(clock.end):
        tally.differences.append(
            f"{clock.zone.key} {line!s:40} after {instant(at)}: {got}, {wanted}"
        )


def check_due(tally, cron, line, boundaries, clock, at, until, limit):
    got = cron.due(instant(at), instant(until), limit)
    first, end = bisect_left(boundaries, at), bisect_right(boundaries, until)
    passed = [instant(boundary) for boundary in boundaries[first:end]]
    following = instant(boundaries[max(first, end)]) if max(first, end) < len(boundaries) else None
    tally.looks += 1
    if (
        got.boundaries != passed[:limit]
        or got.skipped != len(passed[limit:])
        or (got.next != following if following else got.next < instant(clock.end))
    ):
        tally.differences.append(
            f"{clock.zone.key} {line} due from {instant(at)} to {instant(until)}: "
            f"{len(got.boundaries)} + {got.skipped}, then {got.next}; "
            f"wanted {len(passed)}, then {following}"
        )


def around(zone, day, step):
    """The clock of a zone in the days around one, or the day around its noon if by seconds."""
    noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)
    span = timedelta(days=1 if step == 1 else 3)
    return Clock(ZoneInfo(zone), noon - span, noon + span, step)


def compare_around(tally, zone, day, step, specs, rng):
    """Compare lines at random in the days around one; the clock they were compared by."""
    clock, near = around(zone, day, step), date.fromisoformat(day)
    for _ in range(specs):
        line = random_line(rng, near + timedelta(days=rng.randint(-1, 1)), step == 1)
        compare(tally, clock, line, rng)
    return clock


def compare_year(tally, zone, year, specs, rng):
    """Compare lines at random in the year of a zone, minute by minute."""
    begin = datetime(year, 1, 1, tzinfo=UTC)
    clock = Clock(ZoneInfo(zone), begin, begin.replace(year=year + 1), 60)
    for _ in range(specs):
        line = random_line(rng, date(year, rng.randint(1, 12), rng.randint(1, 28)), False)
        compare(tally, clock, line, rng, looks=40)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Compare @cron with brute force.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--specs", type=int, default=20, help="for each zone and period")
    parser.add_argument("--rounds", type=int, default=1, help="years of each zone")
    asked = parser.parse_args(argv)
    rng, total = random.Random(asked.seed), Tally()
    for zone, day, what in ODD_MINUTES:
        compare_around(total, zone, day, 60, asked.specs, rng)
        print(f"{zone} {day}, {what}: {total}", flush=True)
    for zone, day, what in ODD_SECONDS:
        compare_around(total, zone, day, 1, asked.specs, rng)
        print(f"{zone} {day}, {what}: {total}", flush=True)
    for _ in range(asked.rounds):
        for zone in ZONES:
            year = rng.choice(YEARS)
            compare_year(total, zone, year, asked.specs, rng)
            print(f"{zone} in {year}: {total}", flush=True)
    print("\n".join([*total.differences[:20], f"in all: {total}"]))
    return 1 if total.differences else 0


if __name__ == "__main__":
    sys.exit(main())
