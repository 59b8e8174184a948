"""How an idle worker learns of new jobs before its next poll.

Waiting is latency, polling is correctness: a wake-up may be missed or come for nothing, so every
wait is bounded by its caller. PostgreSQL: LISTEN on the worker's own connection, at most one NOTIFY
per queue, process and ``NOTIFY_SECONDS``, since a commit that notifies takes a lock that all such
commits share; what people make ready is rare, and announced each time. SQLite: ``PRAGMA data_version``, which other connections' commits change. Elsewhere,
behind a pooler, and with ``ALKSTORE["NOTIFY"]`` off: polling alone.
"""

from __future__ import annotations

import logging
import selectors
import time
from functools import cache
from typing import Any

from django.db import Error, connections

from . import conf
from .shutdown import Stoppable

logger = logging.getLogger(__name__)

CHANNEL = "django_alkstore"
NOTIFY_SECONDS = 0.1
DATA_VERSION_SECONDS = 0.012
SELECT_SECONDS = 0.25  # a signal does not end a select: look at the stop this often
NAMES_KEPT = 10_000

_announced: dict[tuple[str, str], float] = {}


def announcement(alias: str, queue: str) -> str:
    """What an INSERT into ``queue`` is to return besides, so that its commit wakes workers.

    One statement with the INSERT: a commit of its own would cost as much as the job's. Empty where
    there is nothing to say, or where it was said a moment ago.
    """
    if not _announces(alias):
        return ""
    now = time.monotonic()
    if now - _announced.get((alias, queue), float("-inf")) < NOTIFY_SECONDS:
        return ""
    if len(_announced) >= NAMES_KEPT:  # queues may be named after customers, or days
        _announced.clear()
    _announced[alias, queue] = now
    return f", pg_notify('{CHANNEL}', %(queue)s)"


def announcement_of_rows(alias: str) -> str:
    """Likewise what an UPDATE of jobs of any queues is to return.

    A commit tells the same news once, however many rows say it.
    """
    return f", pg_notify('{CHANNEL}', queue)" if _announces(alias) else ""


def _announces(alias: str) -> bool:
    return _notifies(alias) and conf.current().NOTIFY


@cache
def _notifies(alias: str) -> bool:
    return connections[alias].vendor == "postgresql"


def waiter(alias: str, queues: list[str]) -> Waiter:
    """The waiter for a database, for one thread."""
    if conf.current().NOTIFY:
        return _WAITERS.get(connections[alias].vendor, Waiter)(alias, queues)
    return Waiter(alias, queues)


class Waiter:
    """Polling. ``arm`` comes before the look for jobs, so that nothing falls in between."""

    knows_queues = False  # whether its news is of our queues, and not of any

    def __init__(self, alias: str, queues: list[str]) -> None:
        self.alias = alias
        self.queues = set(queues)

    def arm(self) -> bool:
        """From here on, news ends the next ``wait``; whether some was heard since the last one."""
        return False

    def wait(self, stop: Stoppable, seconds: float) -> bool:
        """Wait for news, for ``stop``, or for ``seconds``; whether there was news."""
        stop.wait(seconds)
        return False


class DataVersion(Waiter):
    """SQLite: one number per connection, changed by the commits of all others."""

    version: object = None

    def arm(self) -> None:
        connections[self.alias].ensure_connection()
        with connections[self.alias].wrap_database_errors:
            self.version = self._read(connections[self.alias].connection)

    def wait(self, stop: Stoppable, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        raw = connections[self.alias].connection
        with connections[self.alias].wrap_database_errors:
            # Sleep before each look: others may write all the time, and not to our queues.
            while (left := deadline - time.monotonic()) > 0:
                if stop.wait(min(left, DATA_VERSION_SECONDS)):
                    return False
                if self._read(raw) != self.version:
                    return True
        return False

    def _read(self, raw: Any) -> object:
        # The driver's own cursor: a hundred reads a second need neither wrappers nor a log.
        return raw.execute("PRAGMA data_version").fetchone()


class Listen(Waiter):
    """PostgreSQL: notifications on the connection that also claims."""

    knows_queues = True
    connection: Any = None  # the driver's, on which LISTEN is in force
    news = False
    polls = False

    def arm(self) -> bool:
        wrapper = connections[self.alias]
        wrapper.ensure_connection()
        if self.connection is not wrapper.connection and not self.polls:
            self._listen(wrapper)
        return self._take_news()

    def _take_news(self) -> bool:
        news, self.news = self.news, False
        return news

    def _listen(self, wrapper: Any) -> None:
        try:
            with wrapper.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                # A pooler makes up the id that it gives its clients, and shares the sessions.
                if cursor.fetchone()[0] != wrapper.connection.info.backend_pid:
                    self._poll("it is behind a connection pooler")
                    return
                cursor.execute(f"LISTEN {CHANNEL}")
        except Error as exc:
            if not wrapper.is_usable():
                raise
            self._poll(f"it cannot LISTEN ({exc})")
            return
        self.connection = wrapper.connection
        self._hear_of(self.connection)
        self.news = True  # there may have been some before

    def _poll(self, why: str) -> None:
        self.polls = True
        logger.warning("polling for jobs in the database %r: %s", self.alias, why,
                       extra={"alias": self.alias})  # fmt: skip

    def _hear_of(self, driver: Any) -> None:
        """Have what comes with the answers to any query told to us, and kept nowhere."""
        if hasattr(driver, "add_notify_handler"):  # psycopg 3
            driver.add_notify_handler(self._heard)
        else:
            driver.notifies = Ear(self._heard)

    def wait(self, stop: Stoppable, seconds: float) -> bool:
        if self.polls:
            return super().wait(stop, seconds)
        deadline = time.monotonic() + seconds
        with connections[self.alias].wrap_database_errors:
            self._receive()  # what came with the answers since arm()
            # Not select.select: it takes no file number over 1,023.
            with selectors.DefaultSelector() as selector:
                selector.register(self.connection, selectors.EVENT_READ)
                while not (self.news or stop.is_set()):
                    if (left := deadline - time.monotonic()) <= 0:
                        break
                    selector.select(min(left, SELECT_SECONDS))
                    self._receive()
        return self._take_news()

    def _receive(self) -> None:
        if not hasattr(self.connection, "pgconn"):  # psycopg2
            self.connection.poll()
            return
        self.connection.pgconn.consume_input()
        while notification := self.connection.pgconn.notifies():
            self._hear(notification.extra.decode())

    def _heard(self, notification: Any) -> None:
        self._hear(notification.payload)

    def _hear(self, queue: str) -> None:
        self.news = self.news or queue in self.queues


class Ear:
    """What psycopg2 appends notifications to."""

    def __init__(self, append: Any) -> None:
        self.append = append


_WAITERS = {"sqlite": DataVersion, "postgresql": Listen}
