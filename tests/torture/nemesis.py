"""What happens to a run: a plan drawn from the seed, and the hands that carry it out.

The plan is the same for the same seed; what it meets is not.
"""

import random
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass

from django.db import connection, connections, transaction

from django_alkstore.models import Job, Lock, Schedule
from django_alkstore.names import SCHEDULER_LOCK

LEASE = 2.0  # of tests.torture.settings
PACE = 0.8  # seconds from one deed to the next, on average
RESTART = ["pg_ctlcluster", "--skip-systemctl-redirect", "15", "main", "restart"]
WEIGHTS = {
    "kill": 5, "freeze": 5, "deploy": 2, "sever": 4, "hold_jobs": 2, "hold_schedules": 1,
    "hold_lease": 1, "hold_all": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Deed:
    """``at``: seconds from the start; ``target`` from 0 to 1 picks one of what there is then."""

    at: float
    what: str
    target: float
    seconds: float


def plan(seed, seconds):
    """The deeds of a run."""
    chance = random.Random(seed)
    deeds, at = [], chance.expovariate(1 / PACE)
    while at < seconds:
        (what,) = chance.choices(list(WEIGHTS), WEIGHTS.values())
        deeds.append(Deed(at, what, chance.random(), chance.uniform(0, 2 * LEASE)))
        at += chance.expovariate(1 / PACE)
    return deeds


class Nemesis:
    """Carries a plan out; all is let go when ``stop`` is set."""

    def __init__(self, supervisor, journal):
        self.supervisor = supervisor
        self.journal = journal
        self.stop = threading.Event()
        self.threads = []

    def carry_out(self, deeds):
        waited = 0.0
        for deed in deeds:
            self.stop.wait(deed.at - waited)
            waited = deed.at
            with suppress(Exception):  # what cannot be done just now is left, and not counted
                getattr(self, deed.what)(deed)
                self.journal.write("deed", deed=deed.what, seconds=deed.seconds)
        connections.close_all()

    def let_go(self):
        """End whatever still holds something."""
        self.stop.set()
        for thread in self.threads:
            thread.join()

    # -- deeds ----------------------------------------------------------------------------------

    def kill(self, deed):
        self.supervisor.signal(self._victim(deed), signal.SIGKILL)

    def deploy(self, deed):
        self.supervisor.signal(self._victim(deed), signal.SIGTERM)

    def freeze(self, deed):
        process = self.supervisor.signal(self._victim(deed), signal.SIGSTOP)
        self._beside(lambda: self._thaw(process, deed.seconds))

    def sever(self, deed):
        """Break a session at the server; SQLite has none."""
        sessions = self._sessions()
        self._end_session(sessions[int(deed.target * len(sessions))])

    def hold_jobs(self, deed):
        self._beside(lambda: self._hold(Job.objects.order_by("-id")[:5], deed.seconds))

    def hold_schedules(self, deed):
        self._beside(lambda: self._hold(Schedule.objects.order_by("id")[:1], deed.seconds))

    def hold_lease(self, deed):
        leases = Lock.objects.filter(name=SCHEDULER_LOCK)
        self._beside(lambda: self._hold(leases, deed.seconds))

    def hold_all(self, deed):
        """Every job there is."""
        self._beside(lambda: self._hold(Job.objects.order_by("id"), deed.seconds))

    def restart_server(self, deed):
        subprocess.run(RESTART, check=True, timeout=60)

    # -- hands ----------------------------------------------------------------------------------

    def _victim(self, deed):
        names = sorted(self.supervisor.argvs)
        return names[int(deed.target * len(names))]

    def _beside(self, call):
        thread = threading.Thread(target=call, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _thaw(self, process, seconds):
        self.stop.wait(seconds)
        process.send_signal(signal.SIGCONT)

    def _hold(self, rows, seconds):
        try:
            with suppress(Exception), transaction.atomic():  # its own session may be broken
                list(rows.select_for_update().values_list("id"))
                self.stop.wait(seconds)
        finally:
            connections.close_all()

    def _sessions(self):
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() ORDER BY pid"
                )
            else:
                cursor.execute(
                    "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
                    " AND id <> CONNECTION_ID() ORDER BY id"
                )
            return [id for (id,) in cursor.fetchall()]

    def _end_session(self, id):
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SELECT pg_terminate_backend(%s)", [id])
            else:
                cursor.execute(f"KILL {id}")
