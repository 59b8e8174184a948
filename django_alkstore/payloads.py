"""What a job may carry: JSON that comes back equal from every database.

None, bool, str, dict with str keys, list, integers of 64 bits and floats below 1e16 come back as
they went in. What ``DjangoJSONEncoder`` writes as a string (date, time, datetime, timedelta, Decimal,
UUID, lazy text) comes back as that string. Everything else is refused, a tuple too, since it would
come back as a list; the message names the path. Limits: 31 levels (MariaDB's JSON_VALID reads no
more) and 1 MiB of JSON text.
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
_INTEGERS = range(-(2**63), 2**63)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_WRITTEN_AS_TEXT = (date, time, timedelta, Decimal, UUID, Promise)


def encode(payload: object) -> str:
    """Return ``payload`` as ASCII JSON text, or raise InvalidPayload with the path at fault."""
    _check(payload, "payload", 1)
    try:
        text = _ENCODER.encode(payload)
    except InvalidPayload:
        raise
    except Exception as exc:  # a time with a zone, a lazy text that fails, and the like
        raise InvalidPayload(expected("payload", "writable as JSON", payload)) from exc
    if len(text) > PAYLOAD_MAX:
        wanted = f"at most {PAYLOAD_MAX} bytes of JSON"
        raise InvalidPayload(f"expected payload to be {wanted}, got {len(text)}")
    return text


def decode(text: str) -> object:
    """Return what the JSON ``text`` of a row says, or raise InvalidPayload."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidPayload(expected("a stored payload", "JSON", text)) from exc


class _Encoder(DjangoJSONEncoder):
    def default(self, o: object) -> object:
        text = super().default(o)
        if _UNSTORABLE.search(text):
            raise InvalidPayload(expected("payload", "text without NUL or surrogates", text))
        return text


_ENCODER = _Encoder(allow_nan=False)


def _check(value: object, path: str, depth: int) -> None:
    if isinstance(value, str):
        if _UNSTORABLE.search(value):
            raise InvalidPayload(expected(path, "text without NUL or lone surrogates", value))
    elif value is None or value is True or value is False:
        return
    elif isinstance(value, int):
        if value not in _INTEGERS:
            raise InvalidPayload(expected(path, "an integer of 64 bits", value))
    elif isinstance(value, float):
        _check_float(value, path)
    elif isinstance(value, dict):
        _check_depth(path, depth)
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidPayload(expected(f"a key of {path}", "a str", key))
            _check(key, f"a key of {path}", depth)
            _check(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        _check_depth(path, depth)
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth + 1)
    elif not isinstance(value, _WRITTEN_AS_TEXT):
        raise InvalidPayload(expected(path, "a type that JSON can hold", value))


def _check_float(value: float, path: str) -> None:
    # jsonb writes a larger float as an integer of its shortest digits: another number.
    if not -FLOAT_BELOW < value < FLOAT_BELOW:
        raise InvalidPayload(expected(path, "a finite float below 1e16", value))


def _check_depth(path: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidPayload(f"expected payload to nest at most {DEPTH_MAX} levels, got {path}")
