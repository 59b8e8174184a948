"""Starts the real commands of a run as processes, and starts again whatever ends, as systemd does.

It writes down what it starts, and how that ended and after which signals.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from ..processes import ROOT
from .history import JOURNAL
from .mutants import MUTANT

MANAGE = [sys.executable, str(ROOT / "manage.py")]
PRODUCE = [sys.executable, "-m", "tests.torture.parties.producing"]
SCHEDULERS = {f"scheduler-{n}": [*MANAGE, "run_schedules"] for n in (1, 2)}
WORKERS = {
    "worker-outbox-1": [*MANAGE, "run_outbox", "--grace", "2"],
    "worker-outbox-4": [*MANAGE, "run_outbox", "--grace", "2", "--concurrency", "4"],
    "worker-queue-2": [*MANAGE, "run_queue", "--grace", "2", "--concurrency", "2"],
}
LOOK_SECONDS = 0.05
END_SECONDS = 90.0  # generous: the machine may be busy with something else


def producers(seed):
    return {f"producer-{n}": [*PRODUCE, f"p{n}", str(seed)] for n in (1, 2)}


class Supervisor:
    """Processes by name, each started again until it is retired."""

    def __init__(self, argvs, directory, database_url, journal, mutant=None):
        self.argvs = argvs
        self.log = directory / "processes.log"
        self.journal = journal
        self.env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.torture.settings",
            "ALKSTORE_DATABASE_URL": database_url,
            "PYTHONUNBUFFERED": "1",
            JOURNAL: str(directory / "journal.jsonl"),
            **({MUTANT: mutant} if mutant else {}),
        }
        self.lock = threading.Lock()
        self.running = {}
        self.told = {}  # process: the signals that were to end it
        self.closed = threading.Event()
        self.watch = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        for name in self.argvs:
            self._start(name)
        self.watch.start()
        return self

    def __exit__(self, *exc):
        self.closed.set()
        self.watch.join()
        for process in self.running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _start(self, name):
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.argvs[name], cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        self.running[name] = process
        self.told[process] = []
        self.journal.write("started", name=name, process=process.pid)

    def _watch(self):
        while not self.closed.wait(LOOK_SECONDS):
            with self.lock:
                for name, process in list(self.running.items()):
                    if process.poll() is not None:
                        self._write_end(name, process)
                        self._start(name)

    def _write_end(self, name, process):
        told = self.told.pop(process)
        self.journal.write(
            "ended", name=name, process=process.pid, code=process.returncode, told=told
        )

    def signal(self, name, signum):
        """Send a signal to the process that has the name now; None if it has just ended."""
        with self.lock:
            process = self.running.get(name)
            return process if process is not None and self._send(process, signum) else None

    def _send(self, process, signum):
        if process.poll() is not None:
            return False
        if signum in (signal.SIGKILL, signal.SIGTERM):
            self.told[process].append(signum)
        process.send_signal(signum)
        return True

    def retire(self, names):
        """Stop these for good, with SIGTERM; what does not end by it is killed."""
        with self.lock:
            retired = {name: self.running.pop(name) for name in names}
            for process in retired.values():
                self._send(process, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for name, process in retired.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._write_end(name, process)
