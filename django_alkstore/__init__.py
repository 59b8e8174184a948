"""Durable job queues, named locks, a leader-elected scheduler and a transactional outbox, in the
project's own database.

The names below are loaded when first used, so importing this package, or naming a queue in a
models.py, touches neither the app registry nor a database.
"""

from importlib import import_module

_HOMES = {
    "queues": ["enqueue_tx", "queue", "get_job", "Queue", "ClaimedJob"],
    "schedules": [
        "schedule",
        "unschedule",
        "update_schedule",
        "pause_schedule",
        "resume_schedule",
        "fire_now",
        "list_schedules",
        "next_boundaries",
    ],
    "scheduler": ["run_schedules"],
    "outboxes": ["outbox", "outbox_enqueue_tx", "Outbox"],
    "locks": ["lock", "Lock"],
    "registry": ["delivery", "handler", "scheduled"],
    "shutdown": ["StopToken"],
    "exceptions": [
        "AlkstoreError",
        "AlreadyRegistered",
        "InvalidName",
        "InvalidOption",
        "InvalidPayload",
        "InvalidSpec",
        "LeadershipLost",
        "LockHeld",
        "PermanentError",
        "ReservedName",
        "RetryLater",
        "TransactionRequired",
    ],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
