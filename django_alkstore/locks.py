"""Named locks: leases with an owner, a token that grows with every acquisition, and an expiry.

At most one acquisition holds a name at a time, by the server's clock. A lease protects only while
it lasts: work that outlives it may overlap the next holder's, so renew it, or hand the token to
whatever you write to. A lock that is taken in a transaction that rolls back is not held.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from types import TracebackType

from . import sql
from .backoff import Duration, seconds
from .exceptions import LockHeld
from .names import valid_name

logger = logging.getLogger(__name__)


def lock(name: str, ttl: Duration = 60, using: str | None = None) -> Lock:
    """The lock ``name``, held for ``ttl`` once acquired.

    Raises InvalidName, ReservedName, and InvalidOption for a ttl that is no duration above 0.
    """
    return Lock(valid_name("lock", name), seconds("ttl", ttl, above_zero=True), using)


def new_owner() -> str:
    """A text that tells people who holds a lease, and that no two acquisitions share."""
    return f"{socket.gethostname()[:128]}:{os.getpid()}:{secrets.token_hex(8)}"


class Lock:
    """One handle. As a context manager it raises LockHeld if it cannot have the lock."""

    def __init__(self, name: str, ttl: float, using: str | None = None) -> None:
        self.name = name
        self.ttl = ttl
        self.using = using
        self.owner: str | None = None
        self.token: int | None = None

    def acquire(self) -> bool:
        """Take the lock if it is free or has lapsed; False if it is held, by this handle too."""
        owner = new_owner()
        token = sql.engine(self.using).take_lock(self.name, owner, self.ttl)
        if token is None:
            return False
        self.owner, self.token = owner, token
        return True

    def renew(self, ttl: Duration | None = None) -> bool:
        """Hold the lock for ``ttl`` from now; False if it is not ours (lapsed but untaken is)."""
        wait = self.ttl if ttl is None else seconds("ttl", ttl, above_zero=True)
        if self.owner is None or self.token is None:
            return False
        return sql.engine(self.using).renew_lock(self.name, self.owner, self.token, wait)

    def release(self) -> bool:
        """Free the lock; False if it was not ours any more."""
        if self.owner is None or self.token is None:
            return False
        released = sql.engine(self.using).release_lock(self.name, self.owner, self.token)
        self.owner = self.token = None
        return released

    def __enter__(self) -> Lock:
        if not self.acquire():
            raise LockHeld(f"expected lock {self.name!r} to be free, got one that is held")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not self.release():
                logger.warning("lock %s had lapsed and was taken before it was released",
                               self.name, extra={"lock": self.name})  # fmt: skip
        except Exception:
            if exc is None:
                raise
            # The body's own exception is what the caller needs to see.
            logger.warning("lock %s could not be released and will lapse", self.name,
                           exc_info=True, extra={"lock": self.name})  # fmt: skip
