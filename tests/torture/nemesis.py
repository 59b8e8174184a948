"""What happens to a run: a plan drawn from the seed, and the hands that carry it out.

The plan is the same for the same seed; what it meets is not. A deed is written down once it is
done; one that could not be, as its session was broken just then, say, is written down as left.
"""

import random
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, connections, transaction

from django_alkstore.models import Job, Lock, Schedule
from django_alkstore.names import SCHEDULER_LOCK

from .drawing import drawn

LEASE = 2.0  # of tests.torture.settings
LONGEST_HOLD = 2 * LEASE
LONGEST_FREEZE = 3 * LEASE  # and another has taken over meanwhile, and is found at work
PACE = 0.8  # seconds from one deed to the next, on average
RESTART_PATIENCE = 120.0
DEEDS = {  # what, and to which kind of process if to any: its share
    ("kill", "scheduler"): 2, ("kill", "worker"): 3, ("kill", "producer"): 1,
    ("freeze", "scheduler"): 2, ("freeze", "worker"): 3, ("freeze", "producer"): 1,
    ("deploy", "scheduler"): 1, ("deploy", "worker"): 1, ("deploy", "producer"): 1,
    ("sever", None): 4, ("hold_jobs", None): 2, ("hold_schedules", None): 1,
    ("hold_lease", None): 1, ("hold_all", None): 2,
}  # fmt: skip


@dataclass(frozen=True)
class Deed:
    """``at``: seconds from the start; ``target`` from 0 to 1 picks one of what there is then."""

    at: float
    what: str
    whom: str | None = None
    target: float = 0.0
    seconds: float = 0.0

    @property
    def name(self):
        return f"{self.what} a {self.whom}" if self.whom else self.what.replace("_", " ")


def plan(seed, seconds):
    """The deeds of a run: each kind in its share, in an order and at times drawn from the seed."""
    chance = random.Random(seed)
    kinds = drawn(chance, DEEDS)
    deeds, at = [], chance.expovariate(1 / PACE)
    while at < seconds:
        what, whom = next(kinds)
        longest = LONGEST_FREEZE if what == "freeze" else LONGEST_HOLD
        deeds.append(Deed(at, what, whom, chance.random(), chance.uniform(0, longest)))
        at += chance.expovariate(1 / PACE)
    return deeds


class Nemesis:
    """Carries a plan out; all is let go when ``stop`` is set."""

    def __init__(self, supervisor, journal, restart=None):
        self.supervisor = supervisor
        self.journal = journal
        self.restart = restart
        self.stop = threading.Event()
        self.threads = []

    def carry_out(self, deeds, seconds):
        """Each deed at its time, or as soon as the one before it is done."""
        begun = time.monotonic()
        for deed in deeds:
            self.journal.write("planned", deed=deed.name)
            self.stop.wait(begun + deed.at - time.monotonic())
            with self._attempt(deed):
                getattr(self, deed.what)(deed)
        self.stop.wait(begun + seconds - time.monotonic())
        connections.close_all()

    def let_go(self):
        """End whatever still holds something."""
        self.stop.set()
        for thread in self.threads:
            thread.join()

    # -- deeds ----------------------------------------------------------------------------------

    def kill(self, deed):
        self._signal(deed, signal.SIGKILL)
        self._done(deed)

    def deploy(self, deed):
        self._signal(deed, signal.SIGTERM)
        self._done(deed)

    def freeze(self, deed):
        process = self._signal(deed, signal.SIGSTOP)
        self._beside(deed, lambda: self._thaw(process, deed))

    def sever(self, deed):
        """Break a session at the server."""
        sessions = self._sessions()
        self._end_session(sessions[int(deed.target * len(sessions))])
        self._done(deed)

    def hold_jobs(self, deed):
        self._beside(deed, lambda: self._hold(Job.objects.order_by("-id")[:5], deed))

    def hold_schedules(self, deed):
        self._beside(deed, lambda: self._hold(Schedule.objects.order_by("id")[:1], deed))

    def hold_lease(self, deed):
        self._beside(deed, lambda: self._hold(Lock.objects.filter(name=SCHEDULER_LOCK), deed))

    def hold_all(self, deed):
        """Every job there is; on SQLite, the one write lock."""
        self._beside(deed, lambda: self._hold(Job.objects.order_by("id"), deed))

    def restart_server(self, deed):
        before = self._started_at()
        connections.close_all()
        with self.supervisor.log.open("ab") as log:
            subprocess.run(self.restart, check=True, timeout=RESTART_PATIENCE,
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
        if self._started_at() == before:
            raise LeftUndone("the server that it restarts is another")
        self._done(deed)

    # -- hands ----------------------------------------------------------------------------------

    @contextmanager
    def _attempt(self, deed):
        try:
            yield
        except Exception as exc:
            self.journal.write("left", deed=deed.name, error=f"{type(exc).__name__}: {exc}")
            connections.close_all()  # a broken one would fail all that follow

    def _done(self, deed, seconds=None):
        self.journal.write("deed", deed=deed.name, seconds=seconds)

    def _signal(self, deed, signum):
        names = [name for name in sorted(self.supervisor.argvs) if name.startswith(deed.whom)]
        name = names[int(deed.target * len(names))]
        process = self.supervisor.signal(name, signum)
        if process is None:
            raise LeftUndone(f"{name} has just ended")
        return process

    def _beside(self, deed, call):
        def run():
            with self._attempt(deed):
                call()
            connections.close_all()

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _thaw(self, process, deed):
        waited = self._wait(deed.seconds)
        process.send_signal(signal.SIGCONT)
        self._done(deed, waited)

    def _hold(self, rows, deed):
        with transaction.atomic():
            if not list(rows.select_for_update().values_list("id")):
                raise LeftUndone("there is no such row")
            waited = self._wait(deed.seconds)
        self._done(deed, waited)

    def _wait(self, seconds):
        began = time.monotonic()
        self.stop.wait(seconds)
        return time.monotonic() - began

    def _started_at(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_postmaster_start_time()")
            return cursor.fetchone()[0]

    def _sessions(self):
        with connection.cursor() as cursor:
            cursor.execute(SESSIONS[connection.vendor])
            return [id for (id,) in cursor.fetchall()]

    def _end_session(self, id):
        with connection.cursor() as cursor:
            cursor.execute(END_SESSION[connection.vendor], [id])


SESSIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() ORDER BY pid",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
    " AND id <> CONNECTION_ID() ORDER BY id",
}
# SQLite has no sessions, and one lock for everything: hold_all.
NEEDS_A_SERVER = ("sever", "hold_jobs", "hold_schedules", "hold_lease")
END_SESSION = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}


class LeftUndone(Exception):
    """A deed that cannot be done just now."""
