import math
import uuid
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum

import pytest
from django.utils.functional import lazy
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_alkstore import AlkstoreError, InvalidPayload, get_job, queue
from django_alkstore.payloads import DEPTH_MAX, PAYLOAD_MAX, decode, encode
from testproject.shop.models import Order

UTC = timezone.utc
Point = namedtuple("Point", "x y")


class Level(IntEnum):
    HIGH = 7


class Word(str, Enum):
    A = "a"


class Plain(Enum):
    A = "a"


@dataclass
class Receipt:
    total: int


def nested(levels, kind=list):
    """``levels`` lists or dicts, one in the other."""
    value = kind()
    for _ in range(levels - 1):
        value = [value] if kind is list else {"a": value}
    return value


def itself():
    loop = []
    loop.append(loop)
    return loop


COME_BACK_EQUAL = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "2**53+1": 2**53 + 1,
    "2**63-1": 2**63 - 1,
    "-(2**63)": -(2**63),
    "0.1": 0.1,
    "1.0": 1.0,
    "1": 1,
    "-0.0": -0.0,
    "1e-300": 1e-300,
    "-1e-300": -1e-300,
    "5e-324": 5e-324,
    "0.1+0.2": 0.1 + 0.2,
    "1e15": 1e15,
    "9.9e15": 9.9e15,
    "largest float": math.nextafter(1e16, 0),
    "least float": math.nextafter(-1e16, 0),
    "empty text": "",
    "text": "größe",
    "emoji": "🐢👩‍👩‍👧",
    "line separator": "\u2028\u2029",
    "control characters": "\x01\t\n\r\x1f\x7f",
    "noncharacter": "\uffff",
    "quotes": "\"'\\%s%(a)s{}",
    "text that looks like JSON": '{"a": NaN}',
    "date as text": "2025-01-01",
    "1 MiB of text": "x" * (PAYLOAD_MAX - 2),
    "empty list": [],
    "empty dict": {},
    "empty key": {"": None},
    "odd keys": {"a.b": 1, "$": 2, "ключ": 3, "__proto__": 4},
    "empties": [[], {}, "", None, 0, False],
    "mixed": {"a": [1, 1.0, {"b": None}], "c": "d"},
    "OrderedDict": OrderedDict(b=1, a=2),
    "defaultdict": defaultdict(list, a=[1]),
    "SafeString": SafeString("<b>"),
    "IntEnum": Level.HIGH,
    "str Enum": Word.A,
    "str Enum as key": {Word.A: 1},
    "31 lists": nested(31),
    "31 dicts": nested(31, dict),
    "10,000 items": list(range(10_000)),
}

COME_BACK_AS_TEXT = {
    "date": (date(2025, 1, 2), "2025-01-02"),
    "time": (time(3, 4, 5), "03:04:05"),
    "datetime": (datetime(2025, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC), "2025-01-02T03:04:05.678Z"),
    "naive datetime": (datetime(2025, 1, 2, 3, 4, 5), "2025-01-02T03:04:05"),
    "timedelta": (timedelta(days=1, seconds=2), "P1DT00H00M02S"),
    "Decimal": (Decimal("1.10"), "1.10"),
    "Decimal NaN": (Decimal("NaN"), "NaN"),
    "UUID": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "lazy text": (gettext_lazy("größe"), "größe"),
}

REFUSED = {
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "1e400": float("1e400"),
    "1e16": 1e16,
    "-1e16": -1e16,
    "1e308": 1e308,
    "2**63": 2**63,
    "-(2**63)-1": -(2**63) - 1,
    "2**200": 2**200,
    "10**5000": 10**5000,
    "NUL": "a\0b",
    "lone high surrogate": "\ud83d",
    "lone low surrogate": "\udc00",
    "bytes": b"a",
    "bytearray": bytearray(b"a"),
    "set": {1},
    "frozenset": frozenset({1}),
    "tuple": (1, 2),
    "namedtuple": Point(1, 2),
    "complex": 1j,
    "Enum": Plain.A,
    "dataclass": Receipt(1),
    "model": Order(),
    "function": len,
    "class": dict,
    "generator": (n for n in ()),
    "range": range(3),
    "exception": ValueError("a"),
    "object": object(),
    "int key": {1: "a"},
    "None key": {None: 1},
    "bool key": {True: 1},
    "tuple key": {(1, 2): 1},
    "key with a NUL": {"a\0": 1},
    "key with a surrogate": {"\ud800": 1},
    "time with a zone": time(1, 2, tzinfo=UTC),
    "lazy text with a NUL": lazy(lambda: "a\0", str)(),
    "lazy text with a surrogate": lazy(lambda: "\ud800", str)(),
    "lazy text that raises": lazy(lambda: 1 / 0, str)(),
    "itself": itself(),
    "32 lists": nested(32),
    "32 dicts": nested(32, dict),
    "10,000 levels": nested(10_000),
    "a byte over 1 MiB": "x" * (PAYLOAD_MAX - 1),
    "emoji over 1 MiB as ASCII": "🐢" * (PAYLOAD_MAX // 12 + 1),
    "64 MB": "x" * 64_000_000,
}


def alike(one, other):
    """Equal, and of the same JSON types all the way down: 1, 1.0 and True are three things."""
    if isinstance(one, dict):
        return {**one} == other and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    kinds = (bool, int, float, str, type(None))
    kind = next(kind for kind in kinds if isinstance(one, kind))
    return one == other and type(other) is kind


# -- what is accepted -----------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("payload", COME_BACK_EQUAL.values(), ids=COME_BACK_EQUAL.keys())
def test_a_payload_comes_back_equal(payload):
    job_id = queue("reports").enqueue(payload)
    assert alike(payload, get_job(job_id).payload)
    assert alike(payload, queue("reports").claim("w").payload)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("payload", "text"), COME_BACK_AS_TEXT.values(), ids=COME_BACK_AS_TEXT.keys()
)
def test_what_json_writes_as_text_comes_back_as_that_text(payload, text):
    job_id = queue("reports").enqueue({"at": [payload]})
    assert get_job(job_id).payload == {"at": [text]}
    assert queue("reports").claim("w").payload == {"at": [text]}


@pytest.mark.django_db
def test_many_payloads_come_back_equal_and_in_order():
    payloads = [p for name, p in COME_BACK_EQUAL.items() if name != "1 MiB of text"]
    ids = queue("reports").enqueue_many(payloads)
    claimed = queue("reports").claim_batch("w", len(payloads))
    assert [job.id for job in claimed] == ids
    assert all(alike(one, job.payload) for one, job in zip(payloads, claimed, strict=True))


def test_the_text_of_a_payload_is_ascii():
    assert encode("größe 🐢\u2028").isascii()


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_any_other_payload_is_refused_in_a_short_sentence(payload):
    with pytest.raises(InvalidPayload, match=r"^expected .*payload.* to be .*, got ") as caught:
        encode(payload)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"a": [1, {"b": math.nan}]}, "payload.a[1].b"),
        ([[], [set()]], "payload[1][0]"),
        ({"a": {1: 2}}, "a key of payload.a"),
        ({"a": {"\0": 2}}, "a key of payload.a"),
        ({"at": [time(1, tzinfo=UTC)]}, "payload.at[0]"),
        ({"t": lazy(lambda: "\0", str)()}, "payload.t"),
        ({"k" * 10_240: math.inf}, f"payload.{'k' * 40}"),
    ],
    ids=["NaN", "set", "int key", "NUL key", "time with a zone", "lazy NUL", "10 kB key"],
)
def test_the_message_names_the_path(payload, path):
    with pytest.raises(InvalidPayload) as caught:
        encode(payload)
    assert str(caught.value).startswith(f"expected {path} to be ")


def test_of_many_payloads_the_message_names_the_one_at_fault():
    with pytest.raises(InvalidPayload, match=r"^expected payloads\[2\]\.a to be "):
        queue("reports").enqueue_many([1, 2, {"a": {3}}])


def test_a_payload_error_is_a_value_error_and_one_of_ours():
    assert issubclass(InvalidPayload, ValueError) and issubclass(InvalidPayload, AlkstoreError)


@pytest.mark.django_db
def test_a_refused_payload_leaves_the_transaction_usable():
    with pytest.raises(InvalidPayload):
        queue("reports").enqueue(math.nan)
    assert queue("reports").enqueue(1)


def test_a_payload_is_as_deep_as_documented():
    assert decode(encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)


@pytest.mark.parametrize(
    "text",
    ["", "{bad", "[" * 100_000, None, b"\xff", "1" * 5_000, "x" * 10_240],
    ids=["empty", "bad", "too deep", "None", "no UTF-8", "giant integer", "10 kB"],
)
def test_a_stored_text_that_is_no_json_is_an_invalid_payload(text):
    with pytest.raises(
        InvalidPayload, match="^expected a stored payload to be JSON, got "
    ) as caught:
        decode(text)
    assert len(str(caught.value)) < 250
