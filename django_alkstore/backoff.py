"""Durations, and the retry curve: ``backoff * 2 ** (attempts - 1)``, at most a maximum.

Every duration of the public API is checked by ``seconds``: a finite int or float of seconds, or a
``timedelta``, up to a hundred years, so that no sum with a date can overflow.
"""

from __future__ import annotations

import math
from datetime import timedelta

from .exceptions import InvalidOption, expected

MAX_SECONDS = 100 * 365 * 86_400

Duration = int | float | timedelta


def seconds(what: str, value: object, *, above_zero: bool = False) -> float:
    """Return the duration ``value`` in seconds; ``what`` is the word that the message uses.

    Raises InvalidOption for a wrong type (bool too), NaN, an infinity, a negative value, a value
    over a hundred years and, with ``above_zero``, for 0.
    """
    lowest = "above 0" if above_zero else "at least 0"
    wanted = f"seconds or a timedelta, {lowest} and at most {MAX_SECONDS}"
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value
    else:
        raise InvalidOption(expected(what, wanted, value))
    if not 0 <= number <= MAX_SECONDS or (above_zero and number == 0):
        raise InvalidOption(expected(what, wanted, value))
    return float(number)


def retry_delay(backoff: float, attempts: int, maximum: float) -> float:
    """Seconds until the next attempt, after ``attempts`` of them: finite, from 0 to ``maximum``.

    Never decreases as ``attempts`` grows, and never overflows, however large that is: a row that
    was edited by hand may say anything.
    """
    try:
        delay = math.ldexp(max(0.0, backoff), max(attempts - 1, 0))
    except OverflowError:
        return maximum
    return min(delay, maximum)
