import random
from datetime import datetime, timedelta, timezone
from enum import Enum
from zoneinfo import ZoneInfo

import pytest
from django.utils.safestring import SafeString

from django_alkstore import AlkstoreError, InvalidSpec
from django_alkstore.backoff import MAX_SECONDS
from django_alkstore.specs import SPEC_MAX, Every, parse_spec

UTC = timezone.utc
NOON = datetime(2025, 3, 9, 12, tzinfo=UTC)
CATCH_UP = 64


class Specs(str, Enum):
    HOURLY = "@every 1h"


ACCEPTED = {
    "second": ("@every 1s", timedelta(seconds=1)),
    "minutes": ("@every 90m", timedelta(minutes=90)),
    "hours": ("@every 2h", timedelta(hours=2)),
    "days": ("@every 7d", timedelta(days=7)),
    "a hundred years": ("@every 36500d", timedelta(days=36_500)),
    "a hundred years in seconds": (f"@every {MAX_SECONDS}s", timedelta(days=36_500)),
    "SafeString": (SafeString("@every 1h"), timedelta(hours=1)),
    "str Enum": (Specs.HOURLY, timedelta(hours=1)),
}

REFUSED = {
    "empty": "",
    "no unit": "@every 30",
    "zero": "@every 0s",
    "leading zero": "@every 05s",
    "negative": "@every -5s",
    "plus sign": "@every +5s",
    "two units": "@every 1h30m",
    "fraction": "@every 1.5s",
    "exponent": "@every 1e3s",
    "underscore": "@every 1_000s",
    "unknown unit": "@every 5w",
    "upper-case unit": "@every 5S",
    "millisecond": "@every 5ms",
    "upper case": "@EVERY 5s",
    "no number": "@every s",
    "no tag": "every 5s",
    "number alone": "5s",
    "two spaces": "@every  5s",
    "space before the unit": "@every 5 s",
    "leading space": " @every 5s",
    "trailing space": "@every 5s ",
    "tab": "@every\t5s",
    "trailing newline": "@every 5s\n",
    "second line": "@every 5s\n@every 6s",
    "NUL": "@every 5s\0",
    "full-width digit": "@every ５s",
    "Arabic digit": "@every ٥s",
    "superscript digit": "@every ²s",
    "a day over a hundred years": "@every 36501d",
    "a second over a hundred years": f"@every {MAX_SECONDS + 1}s",
    "giant": "@every 99999999999d",
    "10**30": f"@every {10**30}s",
    "10 kB of digits": f"@every {'9' * 10_240}s",
    "10 kB of text": "x" * 10_240,
    "five fields": "* * * * *",
    "four fields": "* * * *",
    "seven fields": "* * * * * * *",
    "@hourly": "@hourly",
    "cron in upper case": "@CRON * * * * *",
    "cron without fields": "@cron",
    "cron without a space": "@cron* * * * *",
    "cron after a space": " @cron * * * * *",
    "cron and every": "@cron @every 5m",
    "None": None,
    "bytes": b"@every 5s",
    "int": 5,
    "bool": True,
    "timedelta": timedelta(seconds=5),
    "parsed": Every(timedelta(seconds=5)),
}


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(("spec", "interval"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_every_n_units_is_that_interval(spec, interval):
    assert parse_spec(spec) == Every(interval)
    assert len(spec) <= SPEC_MAX


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED.keys())
def test_every_other_spec_is_refused_at_the_door(spec):
    with pytest.raises(InvalidSpec, match=r"^expected .*spec.* to be .*, got ") as caught:
        parse_spec(spec)
    assert len(str(caught.value)) < 250


def test_a_spec_error_is_a_value_error_and_one_of_ours():
    assert issubclass(InvalidSpec, ValueError) and issubclass(InvalidSpec, AlkstoreError)


def test_a_spec_without_a_tag_is_refused_with_both_forms():
    with pytest.raises(InvalidSpec, match="'@every <n><unit>' .* or '@cron <fields>', got '5s'"):
        parse_spec("5s")


@pytest.mark.parametrize(
    "line", ["* * * * *", "30 2 * * *", "0 */15 9-17 * * mon-fri", "0 0 L * ?"]
)
def test_a_bare_cron_line_is_refused_with_what_to_write(line):
    with pytest.raises(InvalidSpec, match="^expected a spec to be ") as caught:
        parse_spec(line)
    assert str(caught.value).endswith(f" (did you mean '@cron {line}'?), got '{line}'")


def test_an_interval_is_the_same_in_every_zone():
    assert parse_spec("@every 5m", "Asia/Tokyo") == parse_spec("@every 5m")


# -- boundaries -----------------------------------------------------------------------------------


def test_a_schedule_begins_one_interval_from_now():
    assert parse_spec("@every 1h").first_after(NOON) == at("2025-03-09T13:00")


def test_nothing_is_due_before_the_boundary():
    due = parse_spec("@every 1h").due(NOON, NOON - timedelta(microseconds=1), CATCH_UP)
    assert (due.boundaries, due.next, due.skipped) == ([], NOON, 0)


def test_a_boundary_is_due_at_its_very_instant():
    due = parse_spec("@every 1h").due(NOON, NOON, CATCH_UP)
    assert (due.boundaries, due.next, due.skipped) == ([NOON], at("2025-03-09T13:00"), 0)


def test_missed_boundaries_are_fired_up_to_the_limit_and_the_rest_is_counted():
    due = parse_spec("@every 1s").due(NOON, NOON + timedelta(seconds=999.5), CATCH_UP)
    assert due.boundaries == [NOON + timedelta(seconds=k) for k in range(64)]
    assert due.next == NOON + timedelta(seconds=1_000)
    assert due.skipped == 936


def test_exactly_as_many_as_the_limit_skips_none():
    due = parse_spec("@every 1s").due(NOON, NOON + timedelta(seconds=63), CATCH_UP)
    assert (len(due.boundaries), due.skipped) == (64, 0)


def test_the_last_boundary_is_the_last_that_is_not_later():
    hourly = parse_spec("@every 1h")
    assert hourly.last_until(NOON, NOON, 1) == [NOON]
    assert hourly.last_until(NOON, at("2025-03-09T12:59:59.999999"), 1) == [NOON]
    assert hourly.last_until(NOON, at("2025-03-09T13:00"), 1) == [at("2025-03-09T13:00")]
    assert hourly.last_until(NOON, at("2026-03-09T12:30"), 1) == [at("2026-03-09T12:00")]


@pytest.mark.parametrize("seed", range(20))
def test_what_a_late_look_finds_is_what_walking_the_grid_finds(seed):
    rng = random.Random(seed)
    for _ in range(50):
        every = Every(timedelta(seconds=rng.choice([1, 7, 60, 3_601, 86_400])))
        first = NOON + timedelta(microseconds=rng.randrange(10**12))
        now = first + every.interval * rng.uniform(-1, 200)
        limit = rng.choice([1, 2, 64])
        grid = [first]
        while grid[-1] <= now:
            grid.append(grid[-1] + every.interval)
        *passed, following = grid
        due = every.due(first, now, limit)
        assert due.boundaries == passed[:limit]
        assert due.skipped == len(passed[limit:])
        assert due.next == following
        assert not passed or every.last_until(first, now, 1) == [passed[-1]]


@pytest.mark.parametrize("seed", range(10))
def test_looking_again_and_again_fires_and_skips_each_boundary_once(seed):
    rng = random.Random(seed)
    every, boundary, now = parse_spec("@every 7s"), NOON, NOON
    seen = 0
    for _ in range(200):
        now += timedelta(seconds=rng.choice([0, 0.3, 6.999999, 7, 30, 5_000]))
        due = every.due(boundary, now, CATCH_UP)
        assert due.boundaries == [
            NOON + (seen + k) * every.interval for k in range(len(due.boundaries))
        ]
        assert now < due.next <= now + every.interval
        seen += len(due.boundaries) + due.skipped
        boundary = due.next
    assert boundary == NOON + seen * every.interval


def test_a_billion_missed_boundaries_are_counted_not_walked():
    now = NOON + timedelta(seconds=10**9)
    due = parse_spec("@every 1s").due(NOON, now, CATCH_UP)
    assert (len(due.boundaries), due.skipped) == (64, 10**9 + 1 - 64)
    assert due.next == now + timedelta(seconds=1)


def test_a_boundary_of_the_year_1_is_caught_up_with():
    first = datetime.min.replace(tzinfo=UTC)
    due = parse_spec("@every 1s").due(first, NOON, CATCH_UP)
    assert len(due.boundaries) + due.skipped == (NOON - first) // timedelta(seconds=1) + 1
    assert due.next == NOON + timedelta(seconds=1)


def test_a_boundary_far_ahead_is_waited_for():
    far = datetime.max.replace(tzinfo=UTC)
    assert parse_spec("@every 36500d").due(far, NOON, CATCH_UP).next == far


def test_a_next_boundary_beyond_the_calendar_is_an_error_that_says_so():
    late = at("9990-01-01")
    with pytest.raises(InvalidSpec, match="^expected the next boundary to be before 10000 AD, got"):
        parse_spec("@every 36500d").due(late, late, CATCH_UP)


def test_a_schedule_that_would_begin_beyond_the_calendar_is_refused():
    with pytest.raises(InvalidSpec, match="^expected the next boundary to be before 10000 AD, got"):
        parse_spec("@every 36500d").first_after(at("9990-01-01"))


@pytest.mark.parametrize("day", ["2025-03-09", "2025-11-02"], ids=["forward", "back"])
def test_an_interval_is_real_time_across_a_clock_change(day):
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo("America/New_York"))
    first = midnight.astimezone(UTC)
    due = parse_spec("@every 2h").due(first, first + timedelta(hours=23), CATCH_UP)
    assert [b - first for b in due.boundaries] == [timedelta(hours=2 * k) for k in range(12)]
