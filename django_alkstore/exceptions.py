"""Every error that the package raises, and the two that a handler raises to steer its worker.

Errors about a wrong value are ValueErrors too, so code that knows nothing of this package can
catch them. ``PermanentError`` and ``RetryLater`` are raised *to* the package, never by it.
"""

from __future__ import annotations


class AlkstoreError(Exception):
    """Base of every error that django_alkstore raises."""


class InvalidName(AlkstoreError, ValueError):
    """A queue, outbox, schedule or lock name breaks the naming rule."""


class ReservedName(InvalidName):
    """The name begins with the prefix that the package keeps for itself."""


class InvalidSpec(AlkstoreError, ValueError):
    """A schedule's spec is not in the grammar."""


class InvalidPayload(AlkstoreError, ValueError):
    """A payload is not JSON, or would not come back equal from every database."""


class InvalidOption(AlkstoreError, ValueError):
    """An option, a duration or another argument has a wrong type or is out of range."""


class TransactionRequired(AlkstoreError):
    """``enqueue_tx`` was called outside ``transaction.atomic()``."""


class LockHeld(AlkstoreError):
    """The lock is held, by somebody else or by an earlier acquisition of the same handle."""


class LeadershipLost(AlkstoreError):
    """Another scheduler leads, so this one may fire nothing."""


class AlreadyRegistered(AlkstoreError):
    """The name already has another delivery or handler."""


class PermanentError(Exception):
    """Raised by a handler: the job can never succeed, so it dies at once, without a retry."""


class RetryLater(Exception):
    """Raised by a handler: run the job again after ``delay``; the attempt still counts.

    ``delay`` is seconds or a ``timedelta``, from 0; it is checked when the worker reads it, and
    one that is no duration counts as an ordinary failure.
    """

    def __init__(self, delay: object, message: str = "") -> None:
        super().__init__(message or f"retry after {_shown(delay)}")
        self.delay = delay


def expected(what: str, wanted: str, got: object) -> str:
    """The one form of every message about a wrong value."""
    return f"expected {what} to be {wanted}, got {_shown(got)}"


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except BaseException:  # user code, also met while a worker records a failure: see ``failures``
        return f"<{type(value).__name__} whose repr() raises>"
    return shown if len(shown) <= 100 else f"{shown[:80]}... ({len(shown)} characters)"
