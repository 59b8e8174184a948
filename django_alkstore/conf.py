"""The settings: one dict, ``ALKSTORE``, read into one frozen dataclass that holds the defaults.

An unknown key is an error that names the nearest known one. ``current()`` follows
``override_settings``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from functools import lru_cache

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .backoff import seconds
from .exceptions import AlkstoreError, InvalidOption, expected
from .names import outbox_of, valid_name
from .options import OPTIONS, JobOptions
from .timetables import TIMES, Plan, plan

QUEUE_DEFAULTS = JobOptions(max_attempts=3, visibility_timeout=300.0, backoff=5.0)
OUTBOX_DEFAULTS = JobOptions(max_attempts=5, visibility_timeout=60.0, backoff=5.0)


@dataclass(frozen=True)
class QueueSettings:
    """What one queue or outbox is set to. ``retention``: seconds a done row stays; None: none."""

    options: JobOptions
    retention: float | None = None


@dataclass(frozen=True)
class Settings:
    """``settings.ALKSTORE``, checked. Durations are in seconds."""

    DATABASE: str | None = None  # None: the alias that the router gives for writes to Job
    QUEUES: Mapping[str, QueueSettings] = field(default_factory=dict)
    OUTBOXES: Mapping[str, QueueSettings] = field(default_factory=dict)
    SCHEDULES: Mapping[str, Plan] = field(default_factory=dict)
    BACKOFF_MAX: float = 3600.0
    LEASE_SECONDS: float = 10.0
    POLL_INTERVAL: float = 1.0
    NOTIFY: bool = True
    DEAD_RETENTION: float | None = 30 * 86_400.0  # None, here and below: for ever
    FIRE_RETENTION: float | None = 90 * 86_400.0
    COUNT_RETENTION: float | None = 7 * 86_400.0
    METRICS_TOKEN: str | None = field(default=None, repr=False)  # None: for staff alone

    def of(self, queue_name: str) -> QueueSettings:
        """What the queue (or, by its backing name, the outbox) is set to."""
        name = outbox_of(queue_name)
        if name is not None:
            return self.OUTBOXES.get(name) or QueueSettings(OUTBOX_DEFAULTS)
        return self.QUEUES.get(queue_name) or QueueSettings(QUEUE_DEFAULTS)


def read(given: object) -> Settings:
    """Return the Settings that the dict ``given`` means, or raise ImproperlyConfigured."""
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(expected("ALKSTORE", "a dict", given))
    _refuse_unknown("ALKSTORE", given, (f.name for f in fields(Settings)))
    try:
        return Settings(**{key: _READERS[key](key, value) for key, value in given.items()})
    except AlkstoreError as exc:
        raise ImproperlyConfigured(f"ALKSTORE: {exc}") from exc


@lru_cache(maxsize=1)
def current() -> Settings:
    """The settings in force."""
    return read(getattr(settings, "ALKSTORE", {}))


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting == "ALKSTORE":
        current.cache_clear()


setting_changed.connect(_forget)


def _refuse_unknown(what: str, given: Iterable[object], known: Iterable[str]) -> None:
    names = sorted(known)
    for key in given:
        if key not in names:
            nearest = max(names, key=lambda name: _likeness(name, str(key)))
            wanted = f"a known one, of which {nearest!r} is the nearest"
            raise ImproperlyConfigured(expected(f"each key of {what}", wanted, key))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _queues(key: str, value: object, kind: str, defaults: JobOptions) -> dict[str, QueueSettings]:
    if not isinstance(value, Mapping):
        raise InvalidOption(expected(key, f"a dict of {kind} names", value))
    return {valid_name(kind, name): _queue(f"{key}[{name!r}]", entry, defaults)
            for name, entry in value.items()}  # fmt: skip


def _queue(what: str, entry: object, defaults: JobOptions) -> QueueSettings:
    if not isinstance(entry, Mapping):
        raise InvalidOption(expected(what, "a dict of options", entry))
    known = [f.name for f in fields(JobOptions)]
    _refuse_unknown(what, entry, [*known, "retention"])
    options = {name: value for name, value in entry.items() if name != "retention"}
    retention = entry.get("retention")
    try:
        return QueueSettings(
            defaults.over(options),
            None if retention is None else seconds("retention", retention),
        )
    except InvalidOption as exc:
        raise InvalidOption(f"{what}: {exc}") from exc


def _schedules(key: str, value: object) -> dict[str, Plan]:
    if not isinstance(value, Mapping):
        raise InvalidOption(expected(key, "a dict of schedule names", value))
    return {valid_name("schedule", name): _schedule(f"{key}[{name!r}]", entry)
            for name, entry in value.items()}  # fmt: skip


def _schedule(what: str, entry: object) -> Plan:
    if not isinstance(entry, Mapping) or not {"spec", "queue"} <= entry.keys():
        raise InvalidOption(expected(what, "a dict with at least a spec and a queue", entry))
    _refuse_unknown(what, entry, ["spec", "queue", "payload", *TIMES, *OPTIONS])
    try:
        return plan(**entry)
    except AlkstoreError as exc:
        raise InvalidOption(f"{what}: {exc}") from exc


def _alias(key: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in settings.DATABASES):
        raise InvalidOption(expected(key, "None or an alias in DATABASES", value))
    return value


def _lease(key: str, value: object) -> float:
    lease = seconds(key, value)
    if lease < 1:
        raise InvalidOption(expected(key, "at least 1 second", value))
    return lease


def _life(key: str, value: object) -> float | None:
    return None if value is None else seconds(key, value)


def _token(key: str, value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isascii() and len(value) >= 16):
        raise InvalidOption(expected(key, "None or a str of at least 16 ASCII characters", "..."))
    return value


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(expected(key, "True or False", value))
    return value


_READERS = {
    "DATABASE": _alias,
    "QUEUES": lambda key, value: _queues(key, value, "queue", QUEUE_DEFAULTS),
    "OUTBOXES": lambda key, value: _queues(key, value, "outbox", OUTBOX_DEFAULTS),
    "SCHEDULES": _schedules,
    "BACKOFF_MAX": seconds,
    "LEASE_SECONDS": _lease,
    "POLL_INTERVAL": lambda key, value: seconds(key, value, above_zero=True),
    "NOTIFY": _flag,
    "DEAD_RETENTION": _life,
    "FIRE_RETENTION": _life,
    "COUNT_RETENTION": _life,
    "METRICS_TOKEN": _token,
}
