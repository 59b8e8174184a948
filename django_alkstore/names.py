"""The naming rule of queues, outboxes, schedules and locks, and the names the package keeps.

A name is 1 to 128 ASCII characters, first a letter, a digit or ``_``, then also ``.:@/+-``.
Names compare byte for byte on every database.
"""

from __future__ import annotations

import re

from .exceptions import InvalidName, ReservedName, expected

NAME_MAX = 128
RESERVED_PREFIX = "__alkstore_"
OUTBOX_PREFIX = f"{RESERVED_PREFIX}outbox:"
SCHEDULER_LOCK = f"{RESERVED_PREFIX}scheduler"
DECLARING_LOCK = f"{RESERVED_PREFIX}declaring"
BACKING_NAME_MAX = len(OUTBOX_PREFIX) + NAME_MAX

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+-]{0,127}")
_RULE = (
    "1 to 128 ASCII characters, first a letter, digit or '_', then also '.', ':', '@', '/', "
    "'+' or '-'"
)


def valid_name(kind: str, name: object) -> str:
    """Return ``name`` as a plain str, or raise InvalidName or ReservedName.

    ``kind`` ("queue", "lock", ...) is the word that the message uses.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(expected(f"the {kind} name", _RULE, name))
    plain = str.__str__(name)
    if plain.startswith(RESERVED_PREFIX):
        wanted = f"without the reserved prefix {RESERVED_PREFIX!r}"
        raise ReservedName(expected(f"the {kind} name", wanted, name))
    return plain


def backing_queue(outbox_name: str) -> str:
    """The queue behind a (valid) outbox name."""
    return OUTBOX_PREFIX + outbox_name


def outbox_of(queue_name: str) -> str | None:
    """The outbox whose backing queue has that name, if it is one."""
    return queue_name.removeprefix(OUTBOX_PREFIX) if queue_name.startswith(OUTBOX_PREFIX) else None


def shown_name(queue_name: str) -> str:
    """How people read a queue name: an outbox by its own name."""
    name = outbox_of(queue_name)
    return queue_name if name is None else f"outbox {name}"
