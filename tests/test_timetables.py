"""What a schedule is asked to do, and when it fires: beside a model that walks one by one."""

import io
import random
import struct
from datetime import datetime, timedelta, timezone
from enum import Enum
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from django.utils.safestring import SafeString

from django_alkstore import (
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidSpec,
    ReservedName,
)
from django_alkstore.options import OPTIONS
from django_alkstore.specs import parse_spec
from django_alkstore.timetables import (
    ALIVE,
    CATCH_UPS,
    MISSED,
    OVERLAPS,
    TIMES,
    Dropped,
    Firing,
    Timetable,
    jittered,
    plan,
)

from .ledger import NOON, at

UTC = timezone.utc
SECOND = timedelta(seconds=1)
MANY = 64  # so many are made up for, or wait
ON_TIME = timedelta(seconds=30)


def timetable(spec="@every 1s", zone="UTC", **rules):
    return Timetable(parse_spec(spec, zone), **rules)


# -- at the door ----------------------------------------------------------------------------------


def test_a_plan_says_what_was_given_and_the_defaults():
    wanted = plan("@every 5m", "reports")
    assert (wanted.spec, wanted.queue, wanted.payload) == ("@every 5m", "reports", None)
    assert (wanted.catch_up, wanted.overlap, wanted.jitter) == ("all", "allow", 0.0)
    assert (wanted.timezone, wanted.starts_at, wanted.ends_at) == (None, None, None)
    assert (wanted.max_fires, wanted.options) == (None, {})


def test_what_a_plan_writes_on_a_row_has_every_option_and_null_for_the_queues():
    columns = plan("@every 5m", "reports", {"a": 1}, priority=0, jitter=3).columns
    assert set(columns) == {"spec", "queue", "payload", *TIMES, *OPTIONS}
    assert (columns["priority"], columns["max_attempts"], columns["jitter"]) == (0, None, 3.0)


class Words(str, Enum):
    LATEST = "latest"


def test_values_are_stored_plain_whatever_type_they_came_in():
    wanted = plan(
        SafeString("@cron 0 9 * * *"),
        SafeString("reports"),
        timezone=ZoneInfo("Europe/London"),
        catch_up=Words.LATEST,
        overlap=SafeString("skip"),
        jitter=timedelta(minutes=1),
        starts_at=datetime(2025, 6, 1, 9, tzinfo=ZoneInfo("Asia/Kolkata")),
    )
    assert {type(text) for text in (wanted.spec, wanted.queue, wanted.catch_up)} == {str}
    assert (wanted.catch_up, wanted.overlap, wanted.jitter) == ("latest", "skip", 60.0)
    assert (wanted.timezone, type(wanted.timezone)) == ("Europe/London", str)
    assert wanted.starts_at == datetime(2025, 6, 1, 3, 30, tzinfo=UTC)
    assert wanted.starts_at.tzinfo is UTC


WRONG = {
    "queue": (InvalidName, {"queue": "no spaces"}),
    "queue reserved": (ReservedName, {"queue": "__alkstore_outbox:receipts"}),
    "payload": (InvalidPayload, {"payload": {1, 2}}),
    "spec None": (InvalidSpec, {"spec": None}),
    "spec bare": (InvalidSpec, {"spec": "0 9 * * *"}),
    "impossible date": (InvalidSpec, {"spec": "@cron 0 0 30 2 *"}),
    "impossible dates": (InvalidSpec, {"spec": "@cron 0 0 31 4,6,9,11 *"}),
    "timezone unknown": (InvalidOption, {"timezone": "Nowhere/None"}),
    "timezone empty": (InvalidOption, {"timezone": ""}),
    "timezone a number": (InvalidOption, {"timezone": 2}),
    "timezone of another kind": (InvalidOption, {"timezone": UTC}),
    "catch_up unknown": (InvalidOption, {"catch_up": "some"}),
    "catch_up in capitals": (InvalidOption, {"catch_up": "ALL"}),
    "catch_up null": (InvalidOption, {"catch_up": None}),
    "catch_up a list": (InvalidOption, {"catch_up": ["all"]}),
    "overlap unknown": (InvalidOption, {"overlap": "forbid"}),
    "overlap a flag": (InvalidOption, {"overlap": True}),
    "jitter negative": (InvalidOption, {"jitter": -1}),
    "jitter text": (InvalidOption, {"jitter": "5"}),
    "jitter null": (InvalidOption, {"jitter": None}),
    "jitter not a number": (InvalidOption, {"jitter": float("nan")}),
    "starts_at naive": (InvalidOption, {"starts_at": datetime(2025, 1, 1)}),
    "starts_at text": (InvalidOption, {"starts_at": "2025-01-01"}),
    "ends_at of the year 3000": (InvalidOption, {"ends_at": datetime(3000, 1, 1, tzinfo=UTC)}),
    "ends before it starts": (InvalidOption, {"starts_at": at(1), "ends_at": at(0.5)}),
    "max_fires 0": (InvalidOption, {"max_fires": 0}),
    "max_fires a flag": (InvalidOption, {"max_fires": True}),
    "max_fires a float": (InvalidOption, {"max_fires": 2.0}),
    "max_fires too large": (InvalidOption, {"max_fires": 2**31}),
    "priority": (InvalidOption, {"priority": "5"}),
    "delay": (TypeError, {"delay": 5}),
    "an option that is none": (TypeError, {"tz": "UTC"}),
}


@pytest.mark.parametrize(("error", "given"), WRONG.values(), ids=WRONG)
def test_a_wrong_plan_is_refused_with_what_was_expected(error, given, settings):
    settings.USE_TZ = True
    with pytest.raises(error, match=r"^expected .* to be .*, got ") as caught:
        plan(**{"spec": "@every 5m", "queue": "reports", **given})
    assert len(str(caught.value)) < 250


def test_a_zone_without_a_name_is_refused():
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    nameless = ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(16) + counts + bytes(6) + b"UTC\0"))
    with pytest.raises(InvalidOption, match="^expected timezone to be a time zone that has a name"):
        plan("@every 5m", "reports", timezone=nameless)


def test_a_plan_may_start_and_end_at_one_instant():
    assert plan("@every 5m", "reports", starts_at=NOON, ends_at=NOON).ends_at == NOON


def test_without_time_zones_in_settings_a_naive_start_is_local_time(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Kolkata"
    wanted = plan("@every 5m", "reports", starts_at=datetime(2025, 6, 1, 9))
    assert wanted.starts_at == datetime(2025, 6, 1, 3, 30, tzinfo=UTC)


# -- begin and end --------------------------------------------------------------------------------


def test_an_interval_is_counted_from_its_start():
    hourly = timetable("@every 1h", starts_at=at(-600))
    assert hourly.first_after(NOON) == at(3_000)
    assert hourly.first_after(at(3_000)) == at(6_600)


def test_a_start_that_is_still_to_come_is_the_first_boundary():
    assert timetable("@every 1h", starts_at=at(600)).first_after(NOON) == at(600)
    assert timetable("@cron 10 12 * * *", starts_at=at(600)).first_after(NOON) == at(600)
    assert timetable("@cron 11 12 * * *", starts_at=at(600)).first_after(NOON) == at(660)
    assert timetable("@cron 9 12 * * *", starts_at=at(600)).first_after(NOON) == at(86_940)


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_both_the_start_and_the_end_may_fire(spec):
    minutely = timetable(spec, starts_at=NOON, ends_at=at(120))
    assert list(minutely.upcoming(minutely.first_after(at(-300)))) == [NOON, at(60), at(120)]
    assert minutely.firing(NOON, at(600)) == Firing([NOON, at(60), at(120)], None)


@pytest.mark.parametrize("spec", ["@every 1m", "@cron * * * * *"])
def test_a_microsecond_before_its_end_a_boundary_is_beyond(spec):
    minutely = timetable(spec, ends_at=at(59.999999))
    assert minutely.firing(NOON, at(600)) == Firing([NOON], None)


def test_a_schedule_that_ended_before_it_began_has_no_boundary():
    assert timetable("@every 1h", ends_at=at(60)).first_after(NOON) is None
    assert timetable("@cron 0 13 * * *", ends_at=at(60)).first_after(NOON) is None


def test_a_boundary_beyond_an_end_that_was_brought_forward_fires_nothing():
    ended = timetable("@every 1m", ends_at=at(30))
    assert ended.firing(at(60), at(300)) == Firing([], None)
    assert list(ended.upcoming(at(60))) == []


def test_a_schedule_that_has_fired_often_enough_has_no_boundary():
    done = timetable("@every 1m", max_fires=2, fires=2)
    assert (done.first_after(NOON), list(done.upcoming(NOON))) == (None, [])
    assert done.firing(NOON, at(300)) == Firing([], None)


def test_the_last_of_so_many_fires_ends_it_at_once():
    assert timetable("@every 1m", max_fires=3, fires=1).firing(NOON, at(600)) == Firing(
        [NOON, at(60)], None
    )
    assert timetable("@every 1m", max_fires=2, fires=1).firing(NOON, NOON) == Firing([NOON], None)


def test_what_was_dropped_does_not_count_as_fired():
    found = timetable("@every 1m", max_fires=2, catch_up="latest").firing(NOON, at(300))
    assert (found.boundaries, found.next) == ([at(300)], at(360))


# -- what was missed ------------------------------------------------------------------------------


def test_all_makes_up_for_64_and_skips_the_rest():
    found = timetable().firing(NOON, at(99))
    assert found == Firing([at(n) for n in range(64)], at(100), skipped=36, why=MISSED)


def test_latest_fires_the_last_and_drops_those_before():
    found = timetable(catch_up="latest").firing(NOON, at(99.5))
    assert found == Firing([at(99)], at(100), dropped=Dropped(NOON, 99, MISSED))


def test_latest_drops_nothing_where_one_is_due():
    assert timetable(catch_up="latest").firing(NOON, at(0.5)) == Firing([NOON], at(1))


def test_none_drops_what_is_late_and_fires_what_is_not():
    found = timetable("@every 10s", catch_up="none").firing(NOON, at(99), on_time=ON_TIME)
    assert found.dropped == Dropped(NOON, 7, MISSED)
    assert (found.boundaries, found.next) == ([at(70), at(80), at(90)], at(100))


def test_none_fires_what_is_so_late_and_no_later():
    minutely = timetable("@every 1m", catch_up="none")
    assert minutely.firing(NOON, at(29.999), on_time=ON_TIME).boundaries == [NOON]
    found = minutely.firing(NOON, at(30), on_time=ON_TIME)
    assert (found.boundaries, found.dropped.count, found.next) == ([], 1, at(60))


def test_without_a_word_a_boundary_is_not_missed_for_thirty_seconds():
    minutely = timetable("@every 1m", catch_up="none")
    assert minutely.firing(NOON, at(29)).boundaries == [NOON]
    assert minutely.firing(NOON, at(31)).boundaries == []


# -- what meets a job that is alive ---------------------------------------------------------------


def test_skip_drops_all_that_is_due_while_the_last_job_lives():
    found = timetable(overlap="skip").firing(NOON, at(99), alive=True)
    assert found == Firing([], at(100), dropped=Dropped(NOON, 100, ALIVE))


def test_skip_fires_one_at_a_look_since_its_job_lives_when_the_next_comes():
    found = timetable(overlap="skip").firing(NOON, at(9))
    assert found == Firing([NOON], at(10), skipped=9, why=ALIVE)


def test_queue_leaves_what_is_due_where_it_is_while_the_last_job_lives():
    assert timetable(overlap="queue").firing(NOON, at(63), alive=True) == Firing([], NOON)


def test_queue_fires_one_and_the_next_waits():
    assert timetable(overlap="queue").firing(NOON, at(9)) == Firing([NOON], at(1))
    assert timetable(overlap="queue").firing(NOON, at(0.5)) == Firing([NOON], at(1))


def test_no_more_than_64_wait():
    assert timetable(overlap="queue").firing(NOON, at(63)) == Firing([NOON], at(1))
    found = timetable(overlap="queue").firing(NOON, at(66))
    assert (found.boundaries, found.next, found.skipped) == ([at(3)], at(4), 0)
    assert found.dropped == Dropped(NOON, 3, "more than 64 waited")


# -- a model that walks ---------------------------------------------------------------------------


class Walker:
    """The same rules, one boundary after another: each is fired, dropped, or still ahead."""

    def __init__(self, timetable, first):
        self.rules = timetable
        self.ahead = [first]
        self.fired, self.dropped = [], []
        self.ended = False

    def walk(self, now):
        """Write down the boundaries up to the first after ``now``."""
        while self.ahead[-1] <= now:
            self.ahead.append(following(self.rules.spec, self.ahead[-1]))

    def look(self, now, alive):
        """What is fired now."""
        self.walk(now)
        last = min(now, self.rules.ends_at or now)
        waiting = [boundary for boundary in self.ahead if boundary <= last]
        missed, rest = self.part(waiting, now)
        fire, drop = self.meet(rest, alive)
        if self.rules.max_fires is not None:
            left = self.rules.max_fires - len(self.fired)
            self.ended = len(fire) >= left
            fire, drop = fire[:left], drop if len(fire) < left else []
        gone = {*missed, *fire, *drop}
        self.fired += fire
        self.dropped += [*missed, *drop]
        self.ahead = [boundary for boundary in self.ahead if boundary not in gone]
        if self.rules.ends_at is not None and self.ahead[0] > self.rules.ends_at:
            self.ended = True
        return fire

    def part(self, waiting, now):
        if self.rules.catch_up == "latest":
            return waiting[:-1], waiting[-1:]
        if self.rules.catch_up == "none":
            late = [boundary for boundary in waiting if boundary + ON_TIME <= now]
            return late, waiting[len(late) :]
        if self.rules.overlap == "queue":
            return waiting[:-MANY], waiting[-MANY:]
        return [], waiting

    def meet(self, rest, alive):
        if self.rules.overlap == "allow":
            return rest[:MANY], rest[MANY:]
        if self.rules.overlap == "skip":
            return ([], rest) if alive else (rest[:1], rest[1:])
        if alive:
            return [], []
        return rest[:1], (rest[1:] if len(rest) > MANY else [])


def following(spec, boundary):
    """The next one: an interval is added, the minutes of a clock are tried one by one."""
    if hasattr(spec, "interval"):
        return boundary + spec.interval
    while True:
        boundary += timedelta(minutes=1)
        local = boundary.astimezone(spec.zone)
        if local.minute % 7 == 0 and local.hour % 2 == 0:
            return boundary


SPECS = {
    "interval": ("@every 7m", "UTC", NOON),
    "clock": ("@cron */7 */2 * * *", "America/New_York", datetime(2025, 3, 9, 5, tzinfo=UTC)),
}
ENDS = {
    "no end": lambda rng, first: {},
    "ends_at": lambda rng, first: {"ends_at": first + timedelta(minutes=rng.randrange(3_000))},
    "max_fires": lambda rng, first: {"max_fires": rng.randrange(1, 150)},
    "both": lambda rng, first: {
        "ends_at": first + timedelta(minutes=7 * rng.randrange(300)),
        "max_fires": rng.randrange(1, 90),
    },
}
GAPS = [0, 0.3, 29, 30, 31, 7 * 60 - 30, 7 * 60, 7 * 60 + 30, 3_600, 20_000, 30_000, 60_000]


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("catch_up", CATCH_UPS)
@pytest.mark.parametrize(("spec", "zone", "first"), SPECS.values(), ids=SPECS)
def test_each_boundary_is_fired_or_dropped_or_ahead_exactly_once(
    spec, zone, first, catch_up, overlap, ends
):
    rng = random.Random(f"{spec} {catch_up} {overlap}")
    for _ in range(6):
        rules = {"catch_up": catch_up, "overlap": overlap, **ends(rng, first)}
        now = first + timedelta(seconds=rng.choice([-60, *GAPS]))
        pending, walker = first, Walker(timetable(spec, zone, **rules), first)
        fired, dropped = [], []
        for _ in range(25):
            alive = rng.random() < 0.4
            found = timetable(spec, zone, fires=len(fired), **rules).firing(
                pending, now, alive, ON_TIME
            )
            assert found.boundaries == walker.look(now, alive)
            fired += found.boundaries
            dropped += counted(walker, found)
            assert (fired, sorted(dropped)) == (walker.fired, sorted(walker.dropped))
            assert found.next == (None if walker.ended else walker.ahead[0])
            if found.next is None:
                break
            pending, now = found.next, now + timedelta(seconds=rng.choice(GAPS))
        assert len({*fired, *dropped}) == len(fired) + len(dropped)


def counted(walker, found):
    """The boundaries that a look says are dropped: where it says they begin, and so many."""
    known = sorted({*walker.fired, *walker.dropped, *walker.ahead})
    spans = []
    if found.dropped:
        spans.append((known.index(found.dropped.first), found.dropped.count))
    if found.skipped:
        spans.append((known.index(found.boundaries[-1]) + 1, found.skipped))
    return [boundary for begin, many in spans for boundary in known[begin : begin + many]]


# -- ahead ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "zone", "first"), SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_what_is_upcoming_is_what_is_fired_by_and_by(spec, zone, first, ends):
    rng = random.Random(spec)
    for _ in range(10):
        rules = ends(rng, first)
        ahead = list(islice(timetable(spec, zone, **rules).upcoming(first), 100))
        fired, pending = [], first
        while pending is not None and len(fired) < 100:
            found = timetable(spec, zone, fires=len(fired), **rules).firing(pending, pending)
            fired, pending = fired + found.boundaries, found.next
        assert ahead == fired


def test_a_boundary_that_is_none_of_the_clock_is_not_upcoming():
    daily = timetable("@cron 0 9 * * *", "Asia/Kolkata")
    assert next(daily.upcoming(NOON)) == datetime(2024, 3, 2, 3, 30, tzinfo=UTC)
    assert next(daily.upcoming(datetime(2024, 3, 2, 3, 30, tzinfo=UTC))).day == 2


def test_without_a_boundary_nothing_is_upcoming():
    assert list(timetable().upcoming(None)) == []


# -- jitter ---------------------------------------------------------------------------------------


def test_without_jitter_a_job_runs_at_its_boundary():
    assert jittered("nightly", NOON, 0.0) == NOON


def test_jitter_is_a_part_of_what_is_allowed_and_never_early():
    late = [jittered("nightly", at(60 * n), 30.0) - at(60 * n) for n in range(500)]
    assert all(timedelta(0) <= span < 30 * SECOND for span in late)
    assert min(late) < 2 * SECOND and max(late) > 28 * SECOND
    assert len(set(late)) > 490


def test_jitter_is_the_same_for_a_boundary_each_time_and_in_every_zone():
    tokyo = NOON.astimezone(ZoneInfo("Asia/Tokyo"))
    assert jittered("nightly", NOON, 30.0) == jittered("nightly", tokyo, 30.0)
    assert jittered("nightly", NOON, 30.0) == NOON + timedelta(seconds=0.302961)


def test_schedules_that_are_due_together_are_spread():
    assert len({jittered(f"schedule-{n}", NOON, 60.0) for n in range(100)}) == 100
