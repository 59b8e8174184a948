"""Starts the real commands of a run as processes, and starts again whatever ends, as systemd does."""

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
    "outbox-1": [*MANAGE, "run_outbox", "--grace", "2"],
    "outbox-4": [*MANAGE, "run_outbox", "--grace", "2", "--concurrency", "4"],
    "queue-2": [*MANAGE, "run_queue", "--grace", "2", "--concurrency", "2"],
}
LOOK_SECONDS = 0.05
END_SECONDS = 20.0
START_SECONDS = 10.0


def producers(seed):
    return {f"producer-{n}": [*PRODUCE, f"p{n}", str(seed)] for n in (1, 2)}


class Supervisor:
    """Processes by name. ``ends``: the exit codes of those that ended and were not told to."""

    def __init__(self, argvs, directory, database_url, mutant=None):
        self.argvs = argvs
        self.log = directory / "processes.log"
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
        self.started = {}
        self.told = set()
        self.ends = []
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
            self.running[name] = subprocess.Popen(
                self.argvs[name], cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        self.started[self.running[name]] = time.monotonic()

    def _watch(self):
        while not self.closed.wait(LOOK_SECONDS):
            with self.lock:
                for name, process in list(self.running.items()):
                    if process.poll() is not None:
                        if process not in self.told:
                            self.ends.append(process.returncode)
                        self._start(name)

    def signal(self, name, signum):
        """Send a signal to the process that has the name now; the process."""
        with self.lock:
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                if signum in (signal.SIGKILL, signal.SIGTERM):
                    self.told.add(process)
                process.send_signal(signum)
            return process

    def retire(self, names):
        """Stop these for good with SIGTERM; the names of those that did not end well by it."""
        with self.lock:
            retired = {name: self.running.pop(name) for name in names}
        for process in retired.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        return [name for name, process in retired.items() if not self._ends_well(process, deadline)]

    def _ends_well(self, process, deadline):
        code = _end(process, deadline)
        # One that had just been started may not have come to where it minds the signal.
        is_young = time.monotonic() - self.started[process] < START_SECONDS
        return code == 0 or (code == -signal.SIGTERM and is_young)


def _end(process, deadline):
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
