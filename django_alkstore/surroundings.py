"""What a handler finds around it, every time: connections without an open transaction, the
settings' language and time zone, an empty query log.

Whatever it does to them ends with it: a transaction it left open is rolled back, a broken
connection is dropped, and context variables, which hold language and time zone, are its own. A
transaction that was open before is the caller's, and is left alone. Not undone is what a session
remembers (``SET``, temporary tables) and, on MySQL, a transaction that was begun in plain SQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from django.conf import settings
from django.db import connections

STALE_SECONDS = 2.0  # after so long idle, a connection may have been closed by the server


class Surroundings:
    """Those of one thread, for all its jobs.

    ``owned``: the alias whose connection commits each statement by itself, as a worker needs it
    to, also where the settings turn AUTOCOMMIT off. Without it every connection is as found.
    """

    def __init__(self, owned: str | None = None) -> None:
        found = [connections[alias] for alias in connections]
        self._free = [c for c in found if c.connection is None or not _in_transaction(c)]
        self._owned = [c for c in found if c.alias == owned and not c.in_atomic_block]
        self._free += [c for c in self._owned if c not in self._free]
        self._used_at = time.monotonic()

    def call(self, call: Callable[[Any], object], job: Any) -> None:
        """``call(job)`` in them; what it raises is raised once they are restored."""
        self._refresh()
        try:
            # An empty context: not the caller's language and zone, but those of the settings.
            Context().run(call, job)
        finally:
            self._restore()

    def _refresh(self) -> None:
        if time.monotonic() - self._used_at >= STALE_SECONDS:
            for connection in self._free:
                if connection.connection is not None and not _answers(connection):
                    drop(connection)
        for connection in self._owned:
            if not connection.settings_dict["AUTOCOMMIT"]:
                connection.set_autocommit(True)

    def _restore(self) -> None:
        for connection in self._free:
            if connection.connection is not None and not _is_clean(connection):
                drop(connection)
        forget_queries()
        self._used_at = time.monotonic()


def drop_connections() -> None:
    """Close this thread's connections, also those that their driver cannot close any more."""
    for connection in connections.all(initialized_only=True):
        drop(connection)


def drop(connection: Any) -> None:
    """Close a connection with whatever is open in it."""
    # Or close() would wait for the end of a block that was left open.
    connection.in_atomic_block = connection.closed_in_transaction = False
    with suppress(Exception):  # what drivers raise when they close what is closed already
        connection.close()


def forget_queries() -> None:
    """Empty the query logs that DEBUG keeps for this thread, but for one that a test reads."""
    if settings.DEBUG:
        for connection in connections.all(initialized_only=True):
            if not connection.force_debug_cursor:
                connection.queries_log.clear()


def _is_clean(connection: Any) -> bool:
    try:
        if _in_transaction(connection) or not getattr(connection.connection, "open", True):
            return False
    except Exception:  # a driver's, asked about a connection that was closed behind Django's back
        return False
    if connection.errors_occurred and _answers(connection):
        connection.errors_occurred = False
    return not connection.errors_occurred


def _answers(connection: Any) -> bool:
    try:
        return connection.is_usable()
    except Exception:  # is_usable expects the driver's errors about a server that is gone, only
        return False


def _in_transaction(connection: Any) -> bool:
    """As the driver sees it; where it cannot tell, as Django does."""
    if connection.in_atomic_block or not connection.autocommit:
        return True
    driver = connection.connection
    if (is_open := getattr(driver, "in_transaction", None)) is not None:  # sqlite3
        return is_open
    return getattr(getattr(driver, "info", None), "transaction_status", 0) != 0  # psycopg
