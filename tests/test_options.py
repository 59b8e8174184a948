import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import pytest
from django.utils.safestring import SafeString

from django_alkstore import AlkstoreError, InvalidOption, get_job, outbox, queue
from django_alkstore.backoff import MAX_SECONDS
from django_alkstore.conf import OUTBOX_DEFAULTS, QUEUE_DEFAULTS
from django_alkstore.options import checked, split_start, valid_worker_id, whole_number

UTC = timezone.utc
MILLISECOND = timedelta(milliseconds=1)  # what SQLite's clock arithmetic rounds off


class Level(IntEnum):
    HIGH = 7


NO_INT = {
    "None": None,
    "bool": True,
    "float": 3.0,
    "str": "3",
    "bytes": b"3",
    "Decimal": Decimal(3),
    "Fraction": Fraction(3),
    "NaN": math.nan,
    "inf": math.inf,
    "list": [3],
    "10**30": 10**30,
    "10**5000": 10**5000,
    "-(10**30)": -(10**30),
}

NO_DURATION = {
    "bool": True,
    "str": "3",
    "bytes": b"3",
    "Decimal": Decimal(3),
    "Fraction": Fraction(3),
    "datetime": datetime(2025, 1, 1, tzinfo=UTC),
    "list": [3],
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "negative": -1,
    "barely negative": -5e-324,
    "negative timedelta": timedelta(microseconds=-1),
    "over a hundred years": MAX_SECONDS + 1,
    "10**12": 10**12,
    "10**5000": 10**5000,
    "1e308": 1e308,
    "longest timedelta": timedelta.max,
}

DURATIONS = ["visibility_timeout", "backoff", "expires_in", "delay"]


def table(name, rows, **more):
    rows = rows | more
    return pytest.mark.parametrize(name, rows.values(), ids=rows.keys())


def refused(option, value):
    return pytest.raises(InvalidOption, match=rf"^expected {option} to be .*, got ")


# -- whole numbers ------------------------------------------------------------------------------


@table("value", NO_INT, zero=0, minus_one=-1, too_large=2**31)
def test_max_attempts_is_an_int_from_1(value):
    with refused("max_attempts", value) as caught:
        checked({"max_attempts": value})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", [1, 2, 2**31 - 1])
def test_max_attempts_keeps_an_int_from_1(value):
    assert checked({"max_attempts": value}) == {"max_attempts": value}


@table("value", NO_INT, too_large=2**31, too_small=-(2**31) - 1)
def test_priority_is_an_int_of_32_bits(value):
    with refused("priority", value):
        checked({"priority": value})


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 5, 2**31 - 1])
def test_priority_keeps_an_int_of_32_bits(value):
    assert checked({"priority": value}) == {"priority": value}


def test_an_int_enum_becomes_a_plain_int():
    assert type(whole_number("n", Level.HIGH, 0)) is int
    assert whole_number("n", Level.HIGH, 0) == 7


# -- durations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", DURATIONS)
@table("value", NO_DURATION)
def test_a_duration_is_finite_seconds_or_a_timedelta(option, value):
    with refused(option, value):
        split_start({option: value}) if option == "delay" else checked({option: value})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (7, 7.0),
        (Level.HIGH, 7.0),
        (timedelta(minutes=1, milliseconds=1), 60.001),
        (5e-324, 5e-324),
        (MAX_SECONDS, float(MAX_SECONDS)),
    ],
    ids=["fraction", "int", "IntEnum", "timedelta", "tiny", "a hundred years"],
)
@pytest.mark.parametrize("option", DURATIONS)
def test_a_duration_is_kept_as_float_seconds(option, value, expected):
    if option == "delay":
        kept = split_start({"delay": value})[0].delay
    else:
        kept = checked({option: value})[option]
    assert (kept, type(kept)) == (expected, float)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0)], ids=["0", "0.0", "-0.0", "delta"])
def test_a_claim_that_holds_for_no_time_is_refused(value):
    with refused("visibility_timeout", value):
        checked({"visibility_timeout": value})


@pytest.mark.parametrize("option", ["visibility_timeout", "backoff"])
def test_only_an_expiry_may_be_none(option):
    with refused(option, None):
        checked({option: None})
    assert checked({"expires_in": None}) == {"expires_in": None}


# -- 0 and None -----------------------------------------------------------------------------------


def test_zero_is_a_value_and_never_not_given():
    base = QUEUE_DEFAULTS.over({"priority": 4, "backoff": 9, "expires_in": 60})
    zeros = base.over({"priority": 0, "backoff": 0, "expires_in": 0})
    assert (zeros.priority, zeros.backoff, zeros.expires_in) == (0, 0.0, 0.0)


def test_none_takes_an_expiry_away():
    base = QUEUE_DEFAULTS.over({"expires_in": 60})
    assert base.over({"expires_in": None}).expires_in is None
    assert base.over({}).expires_in == 60.0


def test_the_defaults_of_a_queue_and_of_an_outbox():
    stamped = [
        (o.visibility_timeout, o.max_attempts, o.backoff, o.expires_in, o.priority)
        for o in (QUEUE_DEFAULTS, OUTBOX_DEFAULTS)
    ]
    assert stamped == [(300.0, 3, 5.0, None, 0), (60.0, 5, 5.0, None, 0)]


# -- unknown options ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["expire", "Priority", "state", "delay", "run_at", ""])
def test_an_unknown_option_is_a_type_error_that_lists_the_known(name):
    with pytest.raises(TypeError, match=r"^expected an option to be one of backoff, .*, got '"):
        checked({name: 1})


def test_an_option_error_is_a_value_error_and_one_of_ours():
    assert issubclass(InvalidOption, ValueError) and issubclass(InvalidOption, AlkstoreError)


# -- when to start --------------------------------------------------------------------------------


def test_delay_and_run_at_are_parted_from_the_other_options():
    start, rest = split_start({"delay": 5, "priority": 1})
    assert (start.delay, start.run_at, rest) == (5.0, None, {"priority": 1})


def test_delay_and_run_at_exclude_each_other_even_where_the_delay_is_0():
    with pytest.raises(InvalidOption, match="^expected one of delay and run_at .*, got both$"):
        split_start({"delay": 0, "run_at": datetime(2025, 1, 1, tzinfo=UTC)})


@pytest.mark.parametrize("given", [{}, {"delay": None}, {"run_at": None}, {"delay": 0}], ids=str)
def test_a_job_without_a_delay_starts_at_once(given):
    start, rest = split_start(given)
    assert (start.delay, start.run_at, rest) == (0.0, None, {})


@table(
    "value",
    {
        "str": "2025-01-01T00:00:00Z",
        "int": 1_735_689_600,
        "date": datetime(2025, 1, 1, tzinfo=UTC).date(),
        "bool": True,
        "naive": datetime(2025, 1, 1),
        "earliest": datetime.min,
        "latest": datetime.max,
        "latest in UTC": datetime.max.replace(tzinfo=UTC),
        "before 1970": datetime(1969, 12, 31, tzinfo=UTC),
        "after 2999": datetime(3000, 1, 1, tzinfo=UTC),
    },
)
def test_run_at_is_an_aware_datetime_of_a_sane_year(value):
    with refused("run_at", value):
        split_start({"run_at": value})


def test_run_at_is_kept_as_the_same_instant_in_utc():
    local = datetime(2025, 1, 1, 9, tzinfo=timezone(timedelta(hours=9)))
    start, _ = split_start({"run_at": local})
    assert start.run_at == local
    assert start.run_at.tzinfo is UTC


def test_a_naive_run_at_is_local_time_where_use_tz_is_off(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"
    start, _ = split_start({"run_at": datetime(2025, 1, 1, 9)})
    assert start.run_at == datetime(2025, 1, 1, tzinfo=UTC)


# -- worker ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["w", "host:1", "a b", "größe", "🐢", "w" * 128])
def test_a_worker_id_is_printable_text(value):
    assert valid_worker_id(value) == value


@table(
    "value",
    {
        "empty": "",
        "too long": "w" * 129,
        "tab": "a\tb",
        "newline": "a\n",
        "NUL": "a\0",
        "lone surrogate": "\ud800",
        "bytes": b"w",
        "None": None,
        "int": 1,
    },
)
def test_any_other_worker_id_is_refused(value):
    with refused("worker_id", value):
        valid_worker_id(value)


def test_a_worker_id_becomes_a_plain_str():
    assert type(valid_worker_id(SafeString("w"))) is str


# -- on the row -----------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options",
    [
        {"priority": -(2**31), "max_attempts": 1, "visibility_timeout": 0.5, "backoff": 0.0},
        {"priority": 2**31 - 1, "max_attempts": 2**31 - 1, "backoff": float(MAX_SECONDS)},
        {"visibility_timeout": 1e-300, "backoff": 1e-300},
        {"visibility_timeout": float(MAX_SECONDS)},
    ],
    ids=["least", "greatest", "tiny", "a hundred years"],
)
def test_the_extremes_are_stamped_and_the_job_can_be_claimed(options):
    job_id = queue("reports").enqueue(None, **options)
    row = get_job(job_id)
    assert {name: getattr(row, name) for name in options} == options
    claimed = queue("reports").claim("w")
    assert claimed.id == job_id
    assert claimed.claim_expires_at <= get_job(job_id).due_at


@pytest.mark.django_db
@pytest.mark.parametrize("delay", [5e-324, 1e-7, 0.5, float(MAX_SECONDS)])
def test_any_accepted_delay_with_any_expiry_gives_the_row_its_instants(delay):
    row = get_job(queue("reports").enqueue(None, delay=delay, expires_in=MAX_SECONDS))
    assert row.due_at == row.run_at >= row.created_at - MILLISECOND
    assert row.expires_at >= row.run_at + timedelta(seconds=MAX_SECONDS - 1)


@pytest.mark.django_db
def test_an_expiry_of_0_is_not_no_expiry():
    row = get_job(queue("reports").enqueue(None, expires_in=0))
    assert abs(row.expires_at - row.run_at) < MILLISECOND


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["enqueue", "enqueue_many"])
def test_an_outbox_and_a_queue_of_one_name_stamp_their_own_defaults(verb):
    payload = None if verb == "enqueue" else [None]
    for handle, expected in ((queue("x"), (300.0, 3, 5.0)), (outbox("x"), (60.0, 5, 5.0))):
        ids = getattr(handle, verb)(payload)
        row = get_job(ids if verb == "enqueue" else ids[0])
        assert (row.visibility_timeout, row.max_attempts, row.backoff) == expected
