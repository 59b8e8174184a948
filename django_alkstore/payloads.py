"""What a job may carry: JSON that comes back equal from every database.

None, bool, str, dict with str keys, list, integers of 64 bits and floats below 1e16 come back equal
to what went in. What ``DjangoJSONEncoder`` writes as a string (date, time, datetime, timedelta,
Decimal, UUID, lazy text) comes back as that string. Everything else is refused, a tuple too, since
it would come back as a list; the message names the path. Limits: 31 levels (MariaDB's JSON_VALID
reads no more) and 1 MiB of JSON text.
"""

from __future__ import annotations

import json
import re
from datetime import date, time, timedelta
from decimal import Decimal
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.functional import Promise

from .exceptions import InvalidPayload, expected

PAYLOAD_MAX = 1_048_576
DEPTH_MAX = 31
FLOAT_BELOW = 1e16
INTEGER_BELOW = 2**63
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_STORABLE = "text without NUL or lone surrogates"
_WRITTEN_AS_TEXT = (date, time, timedelta, Decimal, UUID, Promise)
_ENCODER = DjangoJSONEncoder(allow_nan=False)


def encode(payload: object, path: str = "payload") -> str:
    """Return ``payload`` as ASCII JSON text, or raise InvalidPayload with the path at fault.

    ``path`` is what the payload itself is called.
    """
    _check(payload, path, 1)
    text = _ENCODER.encode(payload)
    if len(text) > PAYLOAD_MAX:
        wanted = f"at most {PAYLOAD_MAX} bytes of JSON"
        raise InvalidPayload(f"expected {path} to be {wanted}, got {len(text)}")
    return text


def decode(text: str) -> object:
    """Return what the JSON ``text`` of a row says, or raise InvalidPayload."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidPayload(expected("a stored payload", "JSON", text)) from exc


def _check(value: object, path: str, depth: int) -> None:
    if isinstance(value, str):
        if _UNSTORABLE.search(value):
            raise InvalidPayload(expected(path, _STORABLE, value))
    elif value is None or value is True or value is False:
        return
    elif isinstance(value, int):
        # Not a range: for a subclass, as IntEnum is, "in" would try one integer after the other.
        if not -INTEGER_BELOW <= value < INTEGER_BELOW:
            raise InvalidPayload(expected(path, "an integer of 64 bits", value))
    elif isinstance(value, float):
        # jsonb writes a larger float as an integer of its shortest digits: another number.
        if not -FLOAT_BELOW < value < FLOAT_BELOW:
            raise InvalidPayload(expected(path, "a finite float below 1e16", value))
    elif isinstance(value, (dict, list)):
        _check_items(value, path, depth)
    elif isinstance(value, _WRITTEN_AS_TEXT):
        _check_written(value, path)
    else:
        raise InvalidPayload(expected(path, "a type that JSON can hold", value))


def _check_items(value: dict | list, path: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        wanted = f"{DEPTH_MAX} levels deep at most"
        raise InvalidPayload(f"expected the payload to be {wanted}, got {path}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    else:
        for key, item in value.items():
            _check_key(key, path)
            _check(item, f"{path}.{key[:40]}", depth + 1)


def _check_key(key: object, path: str) -> None:
    if not isinstance(key, str):
        raise InvalidPayload(expected(f"a key of {path}", "a str", key))
    if _UNSTORABLE.search(key):
        raise InvalidPayload(expected(f"a key of {path}", _STORABLE, key))


def _check_written(value: object, path: str) -> None:
    try:
        text = _ENCODER.default(value)
    except Exception as exc:  # a time with a zone, a lazy text that fails
        raise InvalidPayload(expected(path, "writable as JSON", value)) from exc
    if _UNSTORABLE.search(text):
        raise InvalidPayload(expected(path, _STORABLE, value))
