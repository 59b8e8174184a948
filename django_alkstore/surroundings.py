"""What a handler finds around it, every time: connections without an open transaction, the
settings' language and time zone, an empty query log.

Whatever it does to them ends with it: a transaction it left open is rolled back, a broken
connection is dropped. A transaction that was open before is the caller's, and is left alone.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from django.conf import settings
from django.db import Error, connections
from django.utils import timezone, translation

STALE_SECONDS = 2.0  # after so long idle, a connection may have been closed by the server


class Surroundings:
    """Those of one thread: entered once, restored after each job."""

    def __enter__(self) -> Surroundings:
        self._language = settings.LANGUAGE_CODE
        self._overrides = ExitStack()
        self._overrides.enter_context(translation.override(self._language))
        self._overrides.enter_context(timezone.override(None))
        self._found = [_state(connections[alias]) for alias in connections]
        self._used_at = time.monotonic()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._overrides.close()

    def refresh(self) -> None:
        """Before a job: drop connections that broke while they were idle."""
        if time.monotonic() - self._used_at < STALE_SECONDS:
            return
        for connection, was_atomic, _ in self._found:
            if connection.connection is not None and not was_atomic and not connection.is_usable():
                connection.close()

    def restore(self) -> None:
        """After a job."""
        for connection, was_atomic, autocommit in self._found:
            if connection.connection is not None:
                _restore(connection, was_atomic, autocommit)
        if translation.get_language() != self._language:
            translation.activate(self._language)
        timezone.deactivate()
        self._used_at = time.monotonic()


def _state(connection: Any) -> tuple[Any, bool, bool]:
    if connection.connection is None:
        return connection, False, connection.settings_dict["AUTOCOMMIT"]
    return connection, connection.in_atomic_block, connection.autocommit


def _restore(connection: Any, was_atomic: bool, autocommit: bool) -> None:
    if connection.queries_logged:
        connection.queries_log.clear()
    if was_atomic:
        return
    with suppress(Error):  # what drivers raise when they close what is closed already
        if connection.in_atomic_block or connection.autocommit != autocommit:
            # Or close() would wait for the block to end.
            connection.in_atomic_block = connection.closed_in_transaction = False
            connection.close()
        elif connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
