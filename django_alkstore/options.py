"""What a job may be told: its options, each checked at the call, and where it is first to run.

Pure rules: the defaults live in ``conf``, the clock in the database. An option that is not given
is absent, so 0 and None are values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from django.conf import settings
from django.utils.timezone import get_default_timezone, is_aware, make_aware

from .backoff import seconds
from .exceptions import InvalidOption, expected

INT_MAX = 2**31 - 1
WORKER_ID_MAX = 128
YEARS = range(1970, 3000)  # what lies outside stands for never


@dataclass(frozen=True)
class JobOptions:
    """The options that are stamped on a job. Durations are in seconds."""

    max_attempts: int
    visibility_timeout: float
    backoff: float
    expires_in: float | None = None
    priority: int = 0

    def over(self, given: Mapping[str, object]) -> JobOptions:
        """These options with the (unchecked) ``given`` ones over them."""
        return replace(self, **checked(given)) if given else self


@dataclass(frozen=True)
class Start:
    """When a job is first to run: ``delay`` seconds from the insert, or at an instant."""

    delay: float = 0.0
    run_at: datetime | None = None


AT_ONCE = Start()


def checked(given: Mapping[str, object]) -> dict[str, object]:
    """Return the options ``given`` with plain values.

    Raises InvalidOption for a wrong value and TypeError for a name that is no option.
    """
    for name in given:
        if name not in _CHECKS:
            raise TypeError(expected("an option", f"one of {', '.join(sorted(_CHECKS))}", name))
    return {name: _CHECKS[name](name, value) for name, value in given.items()}


def split_start(given: dict[str, object]) -> tuple[Start, dict[str, object]]:
    """Part ``delay`` and ``run_at`` (checked) from the other options of an enqueue."""
    if "delay" not in given and "run_at" not in given:
        return AT_ONCE, given
    rest = dict(given)
    delay, run_at = rest.pop("delay", None), rest.pop("run_at", None)
    if delay is not None and run_at is not None:
        raise InvalidOption("expected one of delay and run_at to be given, got both")
    if run_at is not None:
        return Start(run_at=instant_option("run_at", run_at)), rest
    return Start(0.0 if delay is None else seconds("delay", delay)), rest


def whole_number(what: str, value: object, lowest: int, highest: int = INT_MAX) -> int:
    """Return ``value`` if it is an int (no bool) from ``lowest`` to ``highest``."""
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise InvalidOption(expected(what, f"an int from {lowest} to {highest}", value))
    return int(value)


def instant_option(what: str, value: object) -> datetime:
    """Return the datetime ``value`` in UTC; a naive one is local time, and refused under USE_TZ."""
    if not isinstance(value, datetime) or value.year not in YEARS:
        raise InvalidOption(expected(what, "a datetime of the years 1970 to 2999", value))
    if not is_aware(value):
        if settings.USE_TZ:
            raise InvalidOption(expected(what, "an aware datetime, as USE_TZ is on", value))
        value = make_aware(value, get_default_timezone())
    return value.astimezone(timezone.utc)


def valid_worker_id(value: object) -> str:
    """Return ``value`` if it is a printable str of 1 to 128 characters."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= WORKER_ID_MAX:
        wanted = f"1 to {WORKER_ID_MAX} printable characters"
        raise InvalidOption(expected("worker_id", wanted, value))
    return str.__str__(value)


def _expiry(what: str, value: object) -> float | None:
    return None if value is None else seconds(what, value)


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "priority": lambda what, value: whole_number(what, value, -INT_MAX - 1),
    "max_attempts": lambda what, value: whole_number(what, value, 1),
    "visibility_timeout": lambda what, value: seconds(what, value, above_zero=True),
    "backoff": seconds,
    "expires_in": _expiry,
}
OPTIONS = tuple(_CHECKS)  # their names, in the order in which people meet them
