"""Real processes and threads for tests: commands on the test database, and second connections."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from django.db import connection, connections, transaction

# For tests whose rows other connections must see. Our apps alone: to empty every table and to
# write Django's own rows again takes longer than most tests.
across_connections = pytest.mark.django_db(
    transaction=True, available_apps=["django_alkstore", "testproject.shop"]
)

URL = "ALKSTORE_DATABASE_URL"
CHILDREN_QUERY = "CHILDREN_QUERY"  # what follows the ? of the URL for children, if not the same
ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30.0


def database_url():
    """The test database, as ``testproject.settings`` reads it."""
    query = os.environ.get(CHILDREN_QUERY) or urlsplit(os.environ.get(URL, "")).query
    return f"{bare_url()}?{query}" if query else bare_url()


def bare_url():
    conf = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{conf['NAME']}"
    scheme = {"postgresql": "postgresql", "mysql": "mysql"}[connection.vendor]
    user = quote(conf["USER"]) + (f":{quote(conf['PASSWORD'])}" if conf["PASSWORD"] else "")
    port = f":{conf['PORT']}" if conf["PORT"] else ""
    return f"{scheme}://{user}@{conf['HOST']}{port}/{conf['NAME']}"


def is_pooled():
    """Whether a pooler shares the sessions of the server out: then none is anybody's own."""
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0] != connection.connection.info.backend_pid


def may_refuse_transactions():
    """Whether the database may ask for one to be tried again that reads before it writes."""
    level = connection.settings_dict["OPTIONS"].get("isolation_level")
    if connection.vendor == "sqlite":
        return connection.transaction_mode not in ("IMMEDIATE", "EXCLUSIVE")
    if connection.vendor == "mysql":
        return level == "serializable"
    return level is not None and level.name != "READ_COMMITTED"


def environment():
    """What a child needs to work on the test database."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        URL: database_url(),
        "PYTHONUNBUFFERED": "1",
    }


class Process:
    """A child that is killed at the end of the test; its output is in a file."""

    def __init__(self, argv, output, **env):
        self.output = output
        with output.open("wb") as file:
            self.popen = subprocess.Popen(
                argv,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**environment(), **env},
            )

    @property
    def text(self):
        return self.output.read_text(errors="replace")

    def signal(self, signum):
        self.popen.send_signal(signum)

    def wait(self, timeout=PATIENCE):
        """The exit code."""
        return self.popen.wait(timeout)

    def terminate(self):
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self):
        """SIGKILL."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def until_says(self, words, timeout=PATIENCE):
        """Wait until the output has ``words``."""
        until(lambda: words in self.text or self.popen.poll() is not None, timeout)
        assert words in self.text, self.text


def until(condition, timeout=PATIENCE):
    """Wait for something another process does; fails loudly when it never does."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {condition}"
        time.sleep(0.02)
    return result


def manage(*args):
    """The argv of a management command."""
    return [sys.executable, str(ROOT / "manage.py"), *args]


def in_threads(*calls):
    """Run each call in a thread with connections of its own; their results, in order.

    An exception of any of them is raised here.
    """
    results = [None] * len(calls)
    errors = []

    def run(index, call):
        try:
            results[index] = call()
        except BaseException as exc:
            errors.append(exc)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


@contextmanager
def locking(row):
    """A transaction in which a row is locked."""
    with transaction.atomic():
        type(row)._base_manager.select_for_update().get(pk=row.pk)
        yield


@contextmanager
def held(block):
    """Run the context manager ``block`` in another thread, on its own connection, and hold it.

    Yields once it has been entered; leaves it when the with-block ends.
    """
    entered, leave = threading.Event(), threading.Event()
    errors = []

    def run():
        try:
            with block():
                entered.set()
                leave.wait(PATIENCE)
        except BaseException as exc:
            errors.append(exc)
        finally:
            entered.set()
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert entered.wait(PATIENCE)
        if errors:
            raise errors[0]
        yield
    finally:
        leave.set()
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
