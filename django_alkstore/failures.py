"""What is written down about a failure: a message and a traceback that any database can store.

Recording a failure can itself never fail: whatever ``str(exc)`` does, there is a text. Each is
cut to its documented length (in characters) with both ends kept.
"""

from __future__ import annotations

import traceback

MESSAGE_MAX = 4_096
TRACEBACK_MAX = 32_768


def message_of(error: object) -> str | None:
    """``str(error)`` made storable; the class name where that is empty or raises; None for None."""
    if error is None:
        return None
    if isinstance(error, str):
        return storable(error, MESSAGE_MAX)
    try:
        text = str.__str__(str(error))  # plain, whatever subclass of str was returned
    except BaseException:  # __str__ is user code: sys.exit() in it must not stop a worker
        text = ""
    return storable(text or type(error).__name__, MESSAGE_MAX)


def traceback_of(error: object) -> str | None:
    """The formatted traceback of an exception made storable; None for anything else."""
    if not isinstance(error, BaseException):
        return None
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:
        text = f"{type(error).__name__} (its traceback cannot be formatted)"
    return storable(text, TRACEBACK_MAX)


def storable(text: str, limit: int) -> str:
    """``text`` with NUL and lone surrogates escaped; beyond ``limit`` its two ends, that long."""
    # str.encode, unbound: a str subclass may override its own.
    text = str.encode(text, "utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    if len(text) <= limit:
        return text
    mark = f"\n... cut from {len(text)} characters ...\n"
    tail = (limit - len(mark)) // 2
    return text[: limit - len(mark) - tail] + mark + text[-tail:]
