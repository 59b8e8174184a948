"""``@cron``: what is in the grammar, which days and instants a spec names, and what is due late."""

import random
import sys
import time
from calendar import monthrange
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from django.utils.safestring import SafeString

from django_alkstore import InvalidOption, InvalidSpec, schedule
from django_alkstore.models import Fire, Job, Schedule
from django_alkstore.scheduler import Scheduler
from django_alkstore.specs import SPEC_MAX, parse_spec

from .factories import ScheduleFactory, ago, aware

UTC = timezone.utc
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
CATCH_UP = 64
NEW_YORK, LONDON, APIA = "America/New_York", "Europe/London", "Pacific/Apia"


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(line, zone="UTC"):
    return parse_spec(f"@cron {line}", zone)


def runs(line, zone, begin, end, form="%m-%d %H:%M"):
    """The boundaries from ``begin`` to ``end``, as text in UTC."""
    due = cron(line, zone).due(at(begin), at(end), 10_000)
    return [boundary.strftime(form) for boundary in due.boundaries]


def dates(line, begin, end):
    return runs(line, "UTC", begin, end, "%Y-%m-%d")


def lines_run(call):
    """How many lines of Python a call takes: its work, whatever the machine."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


# -- the grammar ----------------------------------------------------------------------------------

SAME = {
    "five fields are six at second 0": ("30 2 * * *", "0 30 2 * * *"),
    "months in any case": ("0 0 1 jAn,DEC *", "0 0 1 1,12 *"),
    "a range of months": ("0 0 1 Jun-aug *", "0 0 1 6,7,8 *"),
    "days of the week in any case": ("0 0 * * mon-FRI", "0 0 * * 1-5"),
    "7 is Sunday": ("0 0 * * 7", "0 0 * * 0"),
    "SUN is Sunday": ("0 0 * * Sun", "0 0 * * 0"),
    "a range up to 7": ("0 0 * * 5-7", "0 0 * * 0,5,6"),
    "a range up to SUN": ("0 0 * * FRI-SUN", "0 0 * * 0,5,6"),
    "a range from SUN": ("0 0 * * SUN-TUE", "0 0 * * 0,1,2"),
    "a range of Sunday": ("0 0 * * SUN-SUN", "0 0 * * 0"),
    "a week with two Sundays": ("0 0 1 * 0-7", "0 0 1 * 0-6"),
    "steps": ("*/20 0 * * *", "0,20,40 0 * * *"),
    "steps that do not divide the hour": ("*/25 0 * * *", "0,25,50 0 * * *"),
    "the longest step": ("*/59 0 * * *", "0,59 0 * * *"),
    "steps in a range": ("0 1-6/2 * * *", "0 1,3,5 * * *"),
    "steps in a range of names": ("0 0 * * MON-FRI/2", "0 0 * * 1,3,5"),
    "lists of anything": ("5,1-3,*/30 0 * * *", "0,1,2,3,5,30 0 * * *"),
    "a value named twice": ("5,5,4-6 0 * * *", "4,5,6 0 * * *"),
    "a leading zero": ("00 02 01 01 *", "0 2 1 1 *"),
    "?": ("0 0 ? * ?", "0 0 * * *"),
    "? with a step": ("0 0 ?/2 * 1", "0 0 */2 * 1"),
    "l": ("0 0 l * *", "0 0 L * *"),
    "SafeString": (SafeString("30 2 * * *"), "30 2 * * *"),
}

REFUSED = {
    "nothing": "",
    "a space": " ",
    "one field": "*",
    "four fields": "* * * *",
    "seven fields": "* * * * * * *",
    "two spaces": "0  2 * * *",
    "a leading space": " 0 2 * * *",
    "a trailing space": "0 2 * * * ",
    "a tab": "0\t2 * * *",
    "a trailing newline": "0 2 * * *\n",
    "a second line": "0 2 * * *\n0 3 * * *",
    "a no-break space": "0\u00a02 * * *",
    "a NUL": "0 2 * * *\0",
    "minute 60": "60 * * * *",
    "second 60": "60 * * * * *",
    "hour 24": "0 24 * * *",
    "day 0": "0 0 0 * *",
    "day 32": "0 0 32 * *",
    "month 0": "0 0 1 0 *",
    "month 13": "0 0 1 13 *",
    "day of the week 8": "0 0 * * 8",
    "a negative": "-1 * * * *",
    "a plus sign": "+1 * * * *",
    "a fraction": "1.5 * * * *",
    "three digits": "005 * * * *",
    "a range backwards": "5-1 * * * *",
    "a range backwards by names": "0 0 * * SAT-MON",
    "a range backwards to 0": "0 0 * * 5-0",
    "a range without an end": "1- * * * *",
    "a range without a start": "-5 * * * *",
    "a range of ranges": "1-2-3 * * * *",
    "a range beyond": "50-60 * * * *",
    "step 0": "*/0 * * * *",
    "no step": "*/ * * * *",
    "two steps": "*/2/3 * * * *",
    "a step as long as the hour": "*/60 * * * *",
    "a step longer than the hour": "*/90 * * * *",
    "a step as long as the day": "0 */24 * * *",
    "a negative step": "*/-5 * * * *",
    "a step without a range": "5/15 * * * *",
    "an empty item": "1,,2 * * * *",
    "a trailing comma": "1, * * * *",
    "a leading comma": ",1 * * * *",
    "two stars": "** * * * *",
    "a star and a number": "*5 * * * *",
    "? as a minute": "? * * * *",
    "? as an hour": "0 ? * * *",
    "? as a month": "0 0 1 ? *",
    "L as a month": "0 0 1 L *",
    "L as a day of the week": "0 0 * * L",
    "L with a number": "0 0 5L * *",
    "days before L": "0 0 L-3 * *",
    "a range to L": "0 0 20-L * *",
    "LW": "0 0 LW * *",
    "W": "0 0 15W * *",
    "#": "0 0 * * 1#2",
    "H": "H H * * *",
    "a full name": "0 0 * * MONDAY",
    "a name of two letters": "0 0 * * MO",
    "another language": "0 0 1 MAI *",
    "a name in the wrong field": "0 0 MON * *",
    "a month as a day of the week": "0 0 * * JAN",
    "a full-width digit": "\uff15 * * * *",
    "an Arabic digit": "\u0665 * * * *",
    "a superscript digit": "\u00b2 * * * *",
    "a letter whose capital is ASCII": "0 0 * * fr\u0131",
    "@hourly": "@hourly",
    "@every": "@every 5m",
    "@cron": "@cron * * * * *",
    "10 kB of items": ",".join(["1"] * 5_000) + " * * * *",
    "10 kB of text": "x" * 10_240,
    "30 February": "0 0 30 2 *",
    "31 February and 30 February": "0 0 30,31 2 *",
    "the 31st of short months": "0 0 31 4,6,9,11 *",
    "30 February on a Monday": "0 0 30 2 */7",
    "30 February by any wildcard": "0 0 30 2 ?",
}


@pytest.mark.parametrize(("line", "other"), SAME.values(), ids=SAME.keys())
def test_a_line_means_the_same_as_its_plain_form(line, other):
    assert cron(line) == cron(other)


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED.keys())
def test_every_other_line_is_refused_at_the_door(line):
    with pytest.raises(InvalidSpec, match=r"^expected .*spec.* to be .*, got ") as caught:
        cron(line)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 24 * * *", "expected the hour field of a spec to be .* from 0 to 23.*, got '24'"),
        ("0 0 * * FUN", "expected the day-of-week field of a spec to be .*SUN to SAT.*, got 'FUN'"),
        ("0 0 30 2 *", "expected the day-of-month field of a spec to be a day that one of its mon"),
        ("* * * *", "expected what follows @cron in a spec to be five or six fields"),
    ],
)
def test_the_message_says_which_field_is_wrong(line, words):
    with pytest.raises(InvalidSpec, match=words):
        cron(line)


def test_a_line_that_fits_the_column_is_accepted_and_one_that_does_not_is_refused():
    minutes = ",".join(["59"] * 80)
    assert len(f"@cron {minutes} 9 * * */1") == SPEC_MAX
    assert cron(f"{minutes} 9 * * */1") == cron("59 9 * * *")
    with pytest.raises(InvalidSpec, match="^expected a spec to be at most 255 characters, got"):
        cron(f"{minutes} 09 * * */1")


# -- days -----------------------------------------------------------------------------------------


def test_a_day_is_named_by_either_day_field_when_both_restrict():
    named = dates("0 0 13 * 5", "2026-01-01", "2026-12-31")
    assert len(named) == 61
    days = [date.fromisoformat(text) for text in named]
    assert all(day.day == 13 or day.isoweekday() == 5 for day in days)


def test_a_day_field_that_begins_with_a_wildcard_does_not_restrict():
    odd_mondays = ["2026-06-01", "2026-06-15", "2026-06-29"]
    assert dates("0 0 */2 6 MON", "2026-06-01", "2026-06-30") == odd_mondays
    assert dates("0 0 ?/2 6 MON", "2026-06-01", "2026-06-30") == odd_mondays
    assert dates("0 0 *,3 6 MON", "2026-06-01", "2026-06-14") == ["2026-06-01", "2026-06-08"]
    assert dates("0 0 1-7 6 */7", "2026-06-01", "2026-06-30") == ["2026-06-07"]


def test_a_day_field_that_only_ends_with_a_wildcard_restricts():
    assert len(dates("0 0 3,* 6 MON", "2026-06-01", "2026-06-30")) == 30


def test_l_is_the_last_day_of_each_month():
    named = dates("0 0 L * *", "2027-12-01", "2028-12-31")
    assert named == ["2027-12-31"] + [
        f"2028-{month:02}-{monthrange(2028, month)[1]}" for month in range(1, 13)
    ]
    assert dates("0 0 15,L 2 *", "2027-01-01", "2027-12-31") == ["2027-02-15", "2027-02-28"]
    assert dates("0 0 L 6 MON", "2026-06-15", "2026-07-31") == [
        "2026-06-15", "2026-06-22", "2026-06-29", "2026-06-30",
    ]  # fmt: skip


def test_the_31st_is_skipped_in_months_without_one():
    named = dates("0 0 31 * *", "2026-01-01", "2026-12-31")
    assert [text[5:7] for text in named] == ["01", "03", "05", "07", "08", "10", "12"]


def test_29_february_is_found_also_across_a_century_without_one():
    assert cron("0 0 29 2 *").next_after(at("2025-03-01")) == at("2028-02-29")
    assert cron("0 0 29 2 *").next_after(at("2096-02-29")) == at("2104-02-29")


def test_29_february_on_one_day_of_the_week_is_found_forty_years_ahead():
    assert cron("0 0 29 2 */7").next_after(at("2088-02-29")) == at("2128-02-29")
    west = cron("30 */23 29 2 ?/7", NEW_YORK)
    assert west.next_after(at("2088-03-01T04:30")) == at("2128-02-29T05:30")


@pytest.mark.parametrize("weekday", ["*", "*/7", "?/6"])
def test_a_date_is_refused_exactly_if_no_year_has_it(weekday):
    for month in range(1, 13):
        for day in range(1, 32):
            line = f"0 0 {day} {month} {weekday}"
            if day <= monthrange(2000, month)[1]:
                found = cron(line).next_after(at("2071-06-15"))
                assert (found.month, found.day) == (month, day)
                assert found.isoweekday() % 7 in {"*": range(7), "*/7": [0], "?/6": [0, 6]}[weekday]
            else:
                with pytest.raises(InvalidSpec):
                    cron(line)


def test_every_date_of_the_calendar_falls_on_every_day_of_the_week_within_forty_years():
    last = {}
    for day in (date(1600, 1, 1) + timedelta(days=n) for n in range(440 * 365 + 107)):
        key = day.month, day.day, day.weekday()
        assert day.year - last.get(key, 1600) <= 40
        last[key] = day.year
    assert len(last) == 366 * 7


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "America/Sao_Paulo"])
@pytest.mark.parametrize(
    "line",
    ["0 0 29 2 */7", "30 */23 29 2 */7", "0 0 29 2 */6", "59 59 23 L 12 *", "* * * * * *",
     "30 2 * * *", "0 0 */30 * */7", "59 59 */23 31 12 *"],
)  # fmt: skip
def test_no_search_walks_through_days_or_minutes(line, zone):
    rng, spec = random.Random(line), cron(line, zone)
    for _ in range(20):
        begin = at("1850-01-01") + timedelta(seconds=rng.randrange(8_000 * 365 * 86_400))
        assert lines_run(lambda begin=begin, spec=spec: spec.next_after(begin)) < 6_000


# -- time zones -----------------------------------------------------------------------------------


def test_without_a_zone_a_spec_goes_by_the_projects_own(settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    spec = parse_spec("@cron 0 9 * * *")
    assert spec.next_after(at("2025-06-01")) == at("2025-06-01T03:30")
    assert spec == cron("0 9 * * *", "Asia/Kolkata")


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="concerns systems with TZ")
def test_the_time_zone_of_the_host_has_no_say(settings, monkeypatch):
    settings.TIME_ZONE = "Asia/Kolkata"
    try:
        with monkeypatch.context() as host:
            host.setenv("TZ", "America/Los_Angeles")
            time.tzset()
            found = parse_spec("@cron 0 9 * * *").next_after(at("2025-06-01"))
    finally:
        time.tzset()
    assert found == at("2025-06-01T03:30")


def test_a_zone_is_a_name_or_a_zone_info():
    assert cron("0 9 * * *", ZoneInfo(LONDON)) == cron("0 9 * * *", SafeString(LONDON))


@pytest.mark.parametrize("spec", ["@every 5m", "@cron 0 9 * * *"])
@pytest.mark.parametrize(
    "zone",
    ["", "Nowhere", "Europe", "Europe/", "europe london", "../zoneinfo/UTC", "/etc/passwd", ".",
     "UTC\0", "UTC\n", "\ud800", "x" * 10_240, 5, True, b"UTC", UTC, timedelta(0), ["UTC"]],
    ids=lambda zone: repr(zone)[:20],
)  # fmt: skip
def test_what_names_no_zone_is_refused(spec, zone):
    with pytest.raises(InvalidOption, match=r"^expected timezone to be .*, got ") as caught:
        parse_spec(spec, zone)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("begin", [at("2025-03-09T06:59:59"), at("2025-11-02T05:30")])
def test_an_instant_is_the_same_in_whatever_zone_it_is_given(begin):
    spec = cron("30 1,2 * * *", NEW_YORK)
    for zone in (NEW_YORK, "Asia/Tokyo"):
        found = spec.next_after(begin.astimezone(ZoneInfo(zone)))
        assert found == spec.next_after(begin)
        assert found.tzinfo is UTC


def test_a_naive_instant_is_refused():
    with pytest.raises(TypeError):
        cron("30 2 * * *").next_after(datetime(2025, 3, 9))


def test_the_next_boundary_is_later_in_every_zone_at_any_time():
    rng = random.Random(1)
    lines = [
        "* * * * * *",
        "*/15 * * * *",
        "30 2 * * *",
        "0 0 * * *",
        "0 12 L * ?",
        "59 23 31 12 *",
    ]
    for zone in sorted(available_timezones()):
        for line in lines:
            begin = at("1840-01-01") + timedelta(
                microseconds=rng.randrange(260 * 365 * 86_400 * 10**6)
            )
            found = cron(line, zone).next_after(begin)
            assert found > begin and found.tzinfo is UTC and found.microsecond == 0, (zone, line)


# -- clock changes --------------------------------------------------------------------------------

CHANGES = {
    "a time that is missing runs at the first instant after": (
        "30 2 * * *", NEW_YORK, "2025-03-08", "2025-03-11",
        ["03-08 07:30", "03-09 07:00", "03-10 06:30"],
    ),
    "times that are missing together run once": (
        "*/15 2 * * *", NEW_YORK, "2025-03-09", "2025-03-10T06:10",
        ["03-09 07:00", "03-10 06:00"],
    ),
    "a missing time and the one it lands on run once": (
        "0 2,3 * * *", NEW_YORK, "2025-03-09", "2025-03-10T06:10",
        ["03-09 07:00", "03-10 06:00"],
    ),
    "a missing time and a later one run both": (
        "30 2,3 * * *", NEW_YORK, "2025-03-09", "2025-03-10T06:10",
        ["03-09 07:00", "03-09 07:30"],
    ),
    "a daily time runs once on the day of the change": (
        "4 16 * * *", NEW_YORK, "2025-03-08", "2025-03-11",
        ["03-08 21:04", "03-09 20:04", "03-10 20:04"],
    ),
    "a time that comes twice runs the first time": (
        "30 1 * * *", NEW_YORK, "2025-11-01", "2025-11-04",
        ["11-01 05:30", "11-02 05:30", "11-03 06:30"],
    ),
    "a range of hours runs the first time": (
        "*/30 0-2 * * *", NEW_YORK, "2025-11-02", "2025-11-03",
        ["11-02 04:00", "11-02 04:30", "11-02 05:00", "11-02 05:30", "11-02 07:00", "11-02 07:30"],
    ),
    "every hour is real time when clocks go forward": (
        "0 * * * *", NEW_YORK, "2025-03-09T05:30", "2025-03-09T09:30",
        ["03-09 06:00", "03-09 07:00", "03-09 08:00", "03-09 09:00"],
    ),
    "every hour is real time when clocks go back": (
        "0 * * * *", NEW_YORK, "2025-11-02T04:30", "2025-11-02T08:30",
        ["11-02 05:00", "11-02 06:00", "11-02 07:00", "11-02 08:00"],
    ),
    "every other hour skips the hour that is missing": (
        "30 */2 * * *", NEW_YORK, "2025-03-09T05:00", "2025-03-09T11:00",
        ["03-09 05:30", "03-09 08:30", "03-09 10:30"],
    ),
    "quarter hours go on when clocks go back": (
        "*/15 * * * *", LONDON, "2025-10-26T00:00", "2025-10-26T02:59",
        [f"10-26 {hour:02}:{minute:02}" for hour in range(3) for minute in (0, 15, 30, 45)],
    ),
    "quarter hours go on when clocks go forward": (
        "*/15 * * * *", LONDON, "2025-03-30T00:30", "2025-03-30T01:30",
        ["03-30 00:30", "03-30 00:45", "03-30 01:00", "03-30 01:15", "03-30 01:30"],
    ),
    "half an hour that comes twice": (
        "45 1 * * *", "Australia/Lord_Howe", "2025-04-04T12:00", "2025-04-07",
        ["04-04 14:45", "04-05 14:45", "04-06 15:15"],
    ),
    "half an hour that is missing": (
        "15 2 * * *", "Australia/Lord_Howe", "2025-10-03T12:00", "2025-10-06",
        ["10-03 15:45", "10-04 15:30", "10-05 15:15"],
    ),
    "real time across half an hour that is missing": (
        "*/20 * * * *", "Australia/Lord_Howe", "2025-10-04T15:00", "2025-10-04T16:10",
        ["10-04 15:10", "10-04 15:40", "10-04 16:00"],
    ),
    "a zone an hour and three quarters from the next": (
        "0 3 * * *", "Pacific/Chatham", "2025-09-26T12:00", "2025-09-29",
        ["09-26 14:15", "09-27 14:00", "09-28 13:15"],
    ),
    "no midnight": (
        "0 0 * * *", "America/Sao_Paulo", "2018-11-03", "2018-11-06",
        ["11-03 03:00", "11-04 03:00", "11-05 02:00"],
    ),
    "two midnights but for their date": (
        "30 23 * * *", "America/Sao_Paulo", "2018-02-17", "2018-02-19T12:00",
        ["02-17 01:30", "02-18 01:30", "02-19 02:30"],
    ),
    "a day that is missing runs at the start of the next": (
        "0 12 * * *", APIA, "2011-12-29", "2012-01-01",
        ["12-29 22:00", "12-30 10:00", "12-30 22:00", "12-31 22:00"],
    ),
    "a day that is missing and the start of the next run once": (
        "0 0,12 30,31 12 *", APIA, "2011-12-29", "2012-01-01",
        ["12-30 10:00", "12-30 22:00"],
    ),
    "real time on a day that is missing": (
        "0 * 30 12 *", APIA, "2011-12-01", "2012-12-01", [],
    ),
    "a day that comes twice": (
        "0 12 * * *", "America/Juneau", "1867-10-17T12:00", "1867-10-21",
        ["10-17 20:57", "10-18 20:57", "10-20 20:57"],
    ),
    "the first of two changes in six weeks": (
        "30 2 * * *", "Africa/Casablanca", "2025-02-22", "2025-02-25",
        ["02-22 01:30", "02-23 01:30", "02-24 02:30"],
    ),
    "the second": (
        "30 2 * * *", "Africa/Casablanca", "2025-04-05", "2025-04-08",
        ["04-05 02:30", "04-06 02:00", "04-07 01:30"],
    ),
    "minutes and seconds that are missing": (
        "30 0 7 1 *", "Africa/Monrovia", "1972-01-06", "1972-01-09",
        ["01-07 00:44"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "zone", "begin", "end", "wanted"), CHANGES.values(), ids=CHANGES)
def test_a_clock_change_runs_nothing_twice_and_leaves_nothing_out(line, zone, begin, end, wanted):
    assert runs(line, zone, begin, end) == wanted


@pytest.mark.parametrize(
    ("line", "zone", "change"),
    [
        ("30 2 9 3 *", NEW_YORK, "2025-03-09T07:00"),
        ("0 12 30 12 *", APIA, "2011-12-30T10:00"),
        ("0 0 4 11 *", "America/Sao_Paulo", "2018-11-04T03:00"),
    ],
)
def test_a_missing_time_is_found_from_however_far_before(line, zone, change):
    spec, change = cron(line, zone), at(change)
    for days in (0, 1, 2, 3, 4, 30, 300):
        for seconds in (0.000001, 1, 2, 3_600, 43_200):
            before = change - timedelta(days=days, seconds=seconds)
            assert spec.next_after(before) == change
    assert spec.next_after(change) > change + 300 * DAY


@pytest.mark.parametrize("stored", ["2025-11-02T05:30", "2025-11-02T06:30"])
@pytest.mark.parametrize(
    "now", ["2025-11-02T05:10", "2025-11-02T05:40", "2025-11-02T06:10", "2025-11-02T06:40"]
)
def test_a_boundary_stored_in_either_pass_of_an_hour_is_not_repeated(stored, now):
    due = cron("30 1 * * *", NEW_YORK).due(at(stored), at(now), CATCH_UP)
    first, tomorrow = at("2025-11-02T05:30"), at("2025-11-03T06:30")
    assert due.boundaries == [at(stored)] * (at(stored) == first <= at(now))
    assert due.next == (first if at(stored) == first > at(now) else tomorrow)
    assert due.skipped == 0


def test_from_the_second_pass_of_an_hour_the_next_is_tomorrows():
    spec = cron("*/20 1 * * *", NEW_YORK)
    assert spec.next_after(at("2025-11-02T06:10")) == at("2025-11-03T06:00")


def test_from_the_second_pass_of_a_day_the_next_is_tomorrows():
    spec = cron("0 12 * * *", "America/Juneau")  # by its old offset, in seconds
    assert spec.next_after(at("1867-10-19T18:00")) == at("1867-10-20T20:57:41")


def test_a_year_of_a_daily_time_in_new_york():
    begin, zone = at("2025-01-01T05:00"), ZoneInfo(NEW_YORK)
    due = cron("30 2 * * *", NEW_YORK).due(begin, begin + 365 * DAY, 1_000)
    local = [boundary.astimezone(zone) for boundary in due.boundaries]
    assert [t.date() for t in local] == [date(2025, 1, 1) + n * DAY for n in range(365)]
    odd = [f"{t:%m-%d %H:%M}" for t in local if (t.hour, t.minute) != (2, 30)]
    assert odd == ["03-09 03:00"]
    hours = {(b - a) / timedelta(hours=1) for a, b in pairwise(due.boundaries)}
    assert hours == {23.5, 24, 25}


@pytest.mark.parametrize("change", ["2025-03-30T01:00", "2025-10-26T01:00"])
def test_quarter_hours_in_london_are_evenly_spaced_around_both_changes(change):
    begin = at(change) - 2 * DAY
    due = cron("*/15 * * * *", LONDON).due(begin, begin + 4 * DAY, 1_000)
    assert due.boundaries == [begin + n * timedelta(minutes=15) for n in range(4 * 96 + 1)]


def test_a_year_of_quarter_hours_in_london_has_as_many_as_real_time_has():
    begin = at("2025-01-01")
    due = cron("*/15 * * * *", LONDON).due(begin, begin + 365 * DAY - SECOND, 0)
    assert due.skipped == 365 * 96


# -- what is due ----------------------------------------------------------------------------------


def test_nothing_is_due_before_the_boundary():
    noon = at("2025-03-09T12:00")
    due = cron("0 * * * *").due(noon, noon - timedelta(microseconds=1), CATCH_UP)
    assert (due.boundaries, due.next, due.skipped) == ([], noon, 0)


def test_a_boundary_is_due_at_its_very_instant():
    noon = at("2025-03-09T12:00")
    due = cron("0 * * * *").due(noon, noon, CATCH_UP)
    assert (due.boundaries, due.next, due.skipped) == ([noon], at("2025-03-09T13:00"), 0)


def test_exactly_as_many_as_the_limit_skips_none():
    noon = at("2025-03-09T12:00")
    due = cron("* * * * *").due(noon, noon + timedelta(minutes=63), CATCH_UP)
    assert (len(due.boundaries), due.skipped) == (64, 0)


def test_minutes_missed_in_a_stall_are_due_once_each():
    due = cron("* * * * *").due(at("2025-03-09T10:01"), at("2025-03-09T10:03:10"), CATCH_UP)
    assert due.boundaries == [at(f"2025-03-09T10:0{n}") for n in (1, 2, 3)]


def test_the_last_boundary_is_the_last_that_is_not_later():
    daily, first = cron("30 2 * * *", NEW_YORK), at("2025-03-08T07:30")
    assert daily.last_until(first, first, 1) == [first]
    assert daily.last_until(first, at("2025-03-09T06:59:59.999999"), 1) == [first]
    assert daily.last_until(first, at("2025-03-09T07:00"), 1) == [at("2025-03-09T07:00")]
    assert daily.last_until(first, at("2025-11-02T07:29"), 1) == [at("2025-11-01T06:30")]
    assert daily.last_until(first, at("2025-11-02T07:30"), 1) == [at("2025-11-02T07:30")]
    assert daily.last_until(first, at("2026-03-08T06:00"), 1) == [at("2026-03-07T07:30")]


def test_the_last_of_what_falls_once_in_decades_is_found():
    leap, first = cron("0 0 29 2 */7"), at("2060-02-29")
    assert leap.last_until(first, at("2088-02-28T23:59"), 1) == [first]
    assert leap.last_until(first, at("2127-01-01"), 1) == [at("2088-02-29")]


LINES = ["* * * * * *", "*/7 * * * *", "30 1,2 * * *", "0 0 L * ?", "15 3 * * SUN", "0 2,3 * * *"]


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Australia/Lord_Howe", "Africa/Casablanca"])
def test_the_last_of_those_that_are_due_is_what_a_walk_finds(zone):
    rng = random.Random(zone)
    for _ in range(25):
        spec = cron(rng.choice(LINES), zone)
        begin = at("2025-01-01") + timedelta(seconds=rng.randrange(365 * 86_400))
        first = spec.next_after(begin)
        now = first + timedelta(seconds=rng.choice([0, 0.5, 1, 3_600, 10_000, 90_000]))
        walked = spec.due(first, now, 10**6).boundaries
        assert spec.last_until(first, now, 1) == [walked[-1]]
        skipped = spec.due(first, now, 1).skipped
        assert len(walked) == skipped + 1


def test_the_last_of_a_year_of_seconds_is_found_without_a_walk():
    begin, end = at("2024-06-01"), at("2025-06-01")
    spec = cron("* * * * * *", NEW_YORK)
    assert lines_run(lambda: spec.last_until(begin, end, 1)) < 40_000
    yearly = cron("0 0 1 1 *", NEW_YORK)
    assert lines_run(lambda: yearly.last_until(at("1970-01-01T05:00"), end, 1)) < 200_000


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Australia/Lord_Howe"])
def test_a_year_of_seconds_is_counted_not_walked(zone):
    begin, end = at("2024-06-01"), at("2025-06-01")
    spec = cron("* * * * * *", zone)
    due = spec.due(begin, end, CATCH_UP)
    assert due.skipped == (end - begin).total_seconds() + 1 - CATCH_UP
    assert due.next == end + SECOND
    assert lines_run(lambda: spec.due(begin, end, CATCH_UP)) < 40_000


def test_of_a_year_of_seconds_by_the_wall_the_hour_that_comes_twice_counts_once():
    begin, end = at("2024-06-01"), at("2025-06-01")
    due = cron("* * 0-23 * * *", NEW_YORK).due(begin, end, 0)
    assert due.skipped == (end - begin).total_seconds() + 1 - 3_600


def test_what_lands_on_another_boundary_is_skipped_as_one():
    spec = cron("0 2,3 * * *", NEW_YORK)
    due = spec.due(at("2025-03-08T07:00"), at("2025-03-10T07:00"), 1)
    assert due.boundaries == [at("2025-03-08T07:00")]
    assert due.skipped == len(["03-08 08:00", "03-09 07:00", "03-10 06:00", "03-10 07:00"])


def test_a_boundary_of_the_year_1_is_caught_up_with():
    first, now = datetime.min.replace(tzinfo=UTC), at("2025-03-09")
    due = cron("0 0 * * *").due(first, now, CATCH_UP)
    assert len(due.boundaries) + due.skipped == (now - first).days + 1
    assert due.next == now + DAY
    west = cron("0 0 * * *", NEW_YORK).due(first, now, CATCH_UP)
    assert west.next == at("2025-03-09T05:00")
    assert lines_run(lambda: cron("* * * * * *", NEW_YORK).due(first, now, 1)) < 3_000_000


@pytest.mark.parametrize("seconds", [0.5, -0.5, 60, -60, 1_000_000])
def test_from_a_boundary_that_is_none_of_the_spec_the_first_after_it_is_due(seconds):
    spec, noon = cron("0 12 * * *"), at("2025-03-09T12:00")
    stored = noon + timedelta(seconds=seconds)
    due = spec.due(stored, stored + 2 * DAY, CATCH_UP)
    first = spec.next_after(stored)
    assert due.boundaries == [first, first + DAY]
    assert (due.next, due.skipped) == (first + 2 * DAY, 0)


def test_a_boundary_that_is_none_of_the_spec_may_leave_nothing_due():
    due = cron("0 12 * * *").due(at("2025-03-09T12:01"), at("2025-03-09T13:00"), CATCH_UP)
    assert (due.boundaries, due.next, due.skipped) == ([], at("2025-03-10T12:00"), 0)


@pytest.mark.parametrize("seed", range(10))
def test_looking_again_and_again_passes_each_boundary_once(seed):
    rng = random.Random(seed)
    spec, begin = cron("*/7 0-2 * * *", NEW_YORK), at("2025-11-01")
    boundary = now = begin
    seen = 0
    for _ in range(60):
        now += timedelta(seconds=rng.choice([0, 0.3, 419.999999, 420, 3_600, 20_000]))
        due = spec.due(boundary, now, 2)
        assert now < due.next
        seen += len(due.boundaries) + due.skipped
        boundary = due.next
    whole = spec.due(begin, now, 10_000)
    assert (seen, boundary) == (len(whole.boundaries), whole.next)


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Asia/Tokyo"])
def test_a_next_boundary_beyond_the_calendar_is_an_error_that_says_so(zone):
    last = datetime.max.replace(tzinfo=UTC)
    words = "^expected the next boundary to be before 10000 AD, got"
    for line, begin in [
        ("* * * * * *", last),
        ("0 0 29 2 *", last - 800 * DAY),
        ("0 0 1 1 *", last),
    ]:
        with pytest.raises(InvalidSpec, match=words):
            cron(line, zone).next_after(begin)
        with pytest.raises(InvalidSpec, match=words):
            cron(line, zone).due(begin, last, CATCH_UP)
    assert cron("0 * * * *", zone).next_after(last - 2 * DAY) == at("9999-12-30T00:00")


# -- schedules ------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_cron_schedule_fires_by_the_projects_clock(settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    row = schedule("morning", "@cron 0 9 * * *", "reports")
    first = aware(row.next_fire_at).astimezone(timezone.utc)
    assert f"{first:%H:%M}" == "03:30"
    Scheduler().tick(first + DAY)
    wanted = [row.next_fire_at, row.next_fire_at + DAY]
    assert list(Fire.objects.order_by("boundary").values_list("boundary", flat=True)) == wanted
    assert list(Job.objects.order_by("id").values_list("scheduled_for", flat=True)) == wanted
    assert Schedule.objects.get().next_fire_at == row.next_fire_at + 2 * DAY


@pytest.mark.django_db
@pytest.mark.parametrize("spec", ["30 2 * * *", "@cron 0 0 30 2 *", "@cron 60 * * * *"])
def test_a_wrong_line_is_refused_before_any_statement(spec, statements):
    with pytest.raises(InvalidSpec):
        schedule("nightly", spec, "reports")
    assert len(statements) == 0


@pytest.mark.django_db
@pytest.mark.parametrize("spec", ["@cron 0 0 30 2 *", "@cron 5-1 * * * *", "@cron\n"])
def test_a_line_made_wrong_behind_our_back_stops_no_other_schedule(spec, caplog):
    ScheduleFactory(name="broken", spec=spec, overdue=True)
    ScheduleFactory(name="sound", spec="@cron * * * * *", next_fire_at=ago(60))
    Scheduler().tick()
    assert set(Fire.objects.values_list("schedule", flat=True)) == {"sound"}
    assert "schedule broken cannot be fired" in caplog.text
