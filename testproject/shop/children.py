"""Management commands that run as processes of their own beside this one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from django.conf import settings
from django.core.management.base import CommandError

MANAGE = settings.BASE_DIR / "manage.py"
STOP_SECONDS = 15.0
LOG_LINES = 15

Child = subprocess.Popen


class Children:
    """Starts commands, and ends whatever is left of them when the ``with`` block ends."""

    def __init__(self, log: Path, env: dict[str, str]) -> None:
        self.log = log
        self._env = {**os.environ, **env}
        self._running: dict[Child, str] = {}

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            for child in self._running:
                child.terminate()
            for child in list(self._running):
                self._wait_for(child)
        finally:
            for child in self._running:
                child.kill()

    def start(self, command: str) -> Child:
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, str(MANAGE), command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
            )
        self._running[child] = command
        return child

    def kill(self, child: Child) -> None:
        """SIGKILL: the process has no time for anything."""
        child.kill()
        child.wait()
        del self._running[child]

    def stop(self, child: Child) -> int:
        """SIGTERM, or SIGKILL if that does not end it; the exit code."""
        child.terminate()
        self._wait_for(child)
        return child.returncode

    def _wait_for(self, child: Child) -> None:
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        del self._running[child]

    def check(self) -> None:
        """Raise CommandError if one has ended by itself."""
        for child, command in self._running.items():
            if child.poll() is not None:
                self.complain(f"{command} ended by itself with exit code {child.returncode}")

    def complain(self, message: str) -> NoReturn:
        """Raise CommandError with the message and the end of the children's log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        end = "\n".join(lines[-LOG_LINES:]) or "(empty)"
        raise CommandError(f"{message}.\nThe end of {self.log}:\n{end}")
