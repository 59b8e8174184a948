"""Something happens at a chosen statement: a thread stops there, a conflict, a lost connection.

A ``Point`` is the n-th statement that a thread sends on the default connection, before or after it
ran. It stands on Django's own ``execute_wrapper``, so it sees BEGIN and SAVEPOINT too, and COMMIT
not: what a transaction's last statement is paused after is the commit. What a stopped
transaction holds another may wait for: a ``Party`` tells that from its end, without a clock.
"""

import itertools
import os
import signal
import sqlite3
import threading
from contextlib import contextmanager

from django.db import OperationalError, connection, connections

from django_alkstore import sql

from .processes import PATIENCE, until

WHEN = ("before", "after")


class Point:
    """``action`` is called once, before or after the ``number``-th statement that has ``text``."""

    def __init__(self, action, when, number=1, text=""):
        self.action = action
        self.when = when
        self.number = number
        self.text = text
        self.count = 0
        self.reached = False
        self.is_last = False  # as far as is known

    def __repr__(self):
        return f"{self.when} statement {self.number} {self.text}".rstrip()

    @contextmanager
    def here(self):
        """It concerns the statements of this thread inside the block."""
        with connection.execute_wrapper(self._around):
            yield self

    def _around(self, execute, sql, params, many, context):
        self.count += self.text in sql
        if self.reached or self.count != self.number:
            return execute(sql, params, many, context)
        self.reached = True
        if self.when == "before":
            self.action()
        result = execute(sql, params, many, context)
        if self.when == "after":
            self.action()
        return result


def points(action):
    """Every point, before and after each statement, until one is not reached, or is the last."""
    for number in itertools.count(1):
        for when in WHEN:
            point = Point(action, when, number)
            yield point
            if point.is_last or (when == "before" and not point.reached):
                return


class Party:
    """A call in a thread of its own, which stops at a point (``number`` 0: at none) until it is told
    to go on."""

    def __init__(self, call, when="before", number=1, text=""):
        self.point = Point(self._stop, when, number, text)
        self.result = self.error = self.session = None
        self.is_stopped = False
        self.began, self.still = threading.Event(), threading.Event()
        self.ended, self.go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=[call], daemon=True)

    def start(self):
        """Until it stops, ends, or has to wait for what another party holds."""
        self._thread.start()
        assert self.began.wait(PATIENCE)
        until(lambda: self.still.is_set() or self._is_blocked())

    def resume(self):
        """After its stop: until it ends or has to wait."""
        self.go_on.set()
        until(lambda: self.ended.is_set() or self._is_blocked())

    def until_it_ends(self):
        self.go_on.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it never ended"

    def _stop(self):
        self.is_stopped = True
        self._wait()
        self.is_stopped = False

    def _wait(self):
        self.still.set()
        assert self.go_on.wait(PATIENCE), "nobody let it go on"

    def _run(self, call):
        try:
            self.session = session_of(connection)
            self.began.set()
            self.result = self._make(call)
        except BaseException as exc:
            self.error = exc
        finally:
            self.ended.set()
            self.still.set()
            connections.close_all()

    def _make(self, call):
        with self.point.here():
            return call()

    def _is_blocked(self):
        # InnoDB refreshes its table of transactions only if nobody has looked for 0.1 s.
        awaited = self.ended if self.go_on.is_set() else self.still
        if connection.vendor == "sqlite" or awaited.wait(0.12 * (connection.vendor == "mysql")):
            return False
        with connection.cursor() as cursor:
            cursor.execute(BLOCKED[connection.vendor], [self.session])
            return cursor.fetchone() is not None


class Stopped(Party):
    """One that has come to its point, or to its end, and goes on after the block."""

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.until_it_ends()


class Beside(Party):
    """One beside a stopped one that may hold what it needs."""

    def until_it_ends(self):
        super().until_it_ends()
        if self.error:
            raise self.error

    def _make(self, call):
        """SQLite does not tell who waits, so there the call fails instead, and is made again."""
        if connection.vendor != "sqlite":
            return super()._make(call)
        tries, sql.CONFLICT_TRIES = sql.CONFLICT_TRIES, 1
        connection.cursor().execute("PRAGMA busy_timeout = 0")
        try:
            return super()._make(call)
        except OperationalError as exc:
            if not sql.engine().is_conflict(exc.__cause__):
                raise
        finally:
            sql.CONFLICT_TRIES = tries
            connection.close()
        self._wait()
        return call()


def stops(call):
    """Where to stop a call, as it goes when nobody is beside it: after each of its statements, and
    before one where a transaction has ended since the last."""
    seen = []

    def look(execute, text, *args):
        before = connection.in_atomic_block
        result = execute(text, *args)
        seen.append((before, connection.in_atomic_block, "SAVEPOINT" in text))
        return result

    with connection.execute_wrapper(look):
        call()
    found, was_inside = [], False
    for number, (before, after, is_savepoint) in enumerate(seen, 1):
        if was_inside and not before:
            found.append(("before", number))
        if (after or number < len(seen)) and not is_savepoint:
            found.append(("after", number))
        was_inside = after
    return found


BLOCKED = {
    "postgresql": "SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0",
    "mysql": "SELECT 1 FROM information_schema.innodb_trx"
    " WHERE trx_mysql_thread_id = %s AND trx_state = 'LOCK WAIT'",
}


def anybody_can_write():
    """On SQLite: whether nobody holds its one lock. On a server always."""
    if connection.vendor != "sqlite":
        return True
    other = sqlite3.connect(connection.settings_dict["NAME"], timeout=0, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        other.close()
    return True


def session_of(connection):
    """What the server calls it; None where there is no server."""
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        return connection.connection.info.backend_pid
    return connection.connection.thread_id() if connection.vendor == "mysql" else None


# -- what can happen at a point -------------------------------------------------------------------


def raise_conflict():
    """What the database says when a transaction is to be tried again."""
    cause = _conflict()
    raise OperationalError(*cause.args) from cause


def _conflict():
    if connection.vendor == "sqlite":
        cause = sqlite3.OperationalError("database is locked")
        cause.sqlite_errorcode = 5  # SQLITE_BUSY
        return cause
    driver = connection.Database
    if connection.vendor == "mysql":
        return driver.OperationalError(1213, "Deadlock found when trying to get lock")
    return driver.errors.SerializationFailure("could not serialize access")


def lose_connection():
    """The server ends the session."""
    end = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}
    args = end[connection.vendor], session_of(connection)
    thread = threading.Thread(target=_execute_elsewhere, args=args)
    thread.start()
    thread.join()


def _execute_elsewhere(text, *params):
    with connection.cursor() as cursor:
        cursor.execute(text, params)
    connections.close_all()


def kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_fork(call):
    """Run ``call()`` in a forked process with connections of its own; its exit status, negative
    for the signal that killed it."""
    connections.close_all()  # or the child would end the parent's
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    try:
        call()
        os._exit(0)
    finally:
        os._exit(1)
