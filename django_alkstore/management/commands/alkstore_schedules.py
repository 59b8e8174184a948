from __future__ import annotations

import getpass
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...exceptions import AlkstoreError
from ...schedules import fire_now, pause_schedule, resume_schedule
from ...status import snapshot
from ..base import DatabaseCommand
from ..tables import schedule_table


class Command(DatabaseCommand):
    help = "List the schedules, or pause, resume or fire one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("action", nargs="?", choices=["list", *ACTIONS], default="list")
        parser.add_argument("name", nargs="?", help="of the schedule")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.migrated_alias(options["database"])
        action, name = options["action"], options["name"]
        if (action == "list") != (name is None):
            raise CommandError("Give a name with pause, resume and fire, and none with list.")
        if action == "list":
            self.stdout.write(schedule_table(snapshot(alias).schedules))
            return
        try:
            self.stdout.write(ACTIONS[action](name, alias))
        except AlkstoreError as exc:
            raise CommandError(str(exc)) from exc


def pause(name: str, alias: str) -> str:
    if not pause_schedule(name, alias):
        raise CommandError(f"There is no schedule {name!r} that is not paused.")
    return f"{name} is paused"


def resume(name: str, alias: str) -> str:
    if not resume_schedule(name, alias):
        raise CommandError(f"There is no schedule {name!r} that is paused.")
    return f"{name} is resumed"


def fire(name: str, alias: str) -> str:
    job_id = fire_now(name, f"{user_name()}, by command", alias)
    if job_id is None:
        raise CommandError(f"There is no schedule {name!r}.")
    return f"{name} fired: job {job_id}"


def user_name() -> str:
    """Who runs the command; in a container, the user may have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


ACTIONS = {"pause": pause, "resume": resume, "fire": fire}
