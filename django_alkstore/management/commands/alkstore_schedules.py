"""The schedules on a terminal. What it does to one is what the admin does, and leaves the same record;
a schedule that is not there, or is so already, is an error to the shell.
"""

from __future__ import annotations

import getpass
import json
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime

from ...declared import sync
from ...exceptions import AlkstoreError
from ...ledgers import upcoming
from ...options import whole_number
from ...schedules import fire_now, pause_schedule, resume_schedule, update_schedule
from ...status import snapshot
from ..base import DatabaseCommand, argument
from ..tables import aligned, schedule_table

how_many = argument(lambda text: whole_number("it", int(text), 1))


class Command(DatabaseCommand):
    help = (
        "List the schedules; show the next boundaries of one; pause, resume, fire or update one "
        "(update NAME priority=3 spec='@every 5m' payload='{\"kind\": \"stock\"}'); or sync: put in "
        "force what this code declares."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        actions = ["list", "sync", *ACTIONS]
        parser.add_argument("action", nargs="?", choices=actions, default="list")
        parser.add_argument("name", nargs="?", help="of the schedule")
        parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="for update")
        parser.add_argument("--count", type=how_many, default=10, help="for next; default: 10")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.migrated_alias(options["database"])
        action, name = options["action"], options["name"]
        if (action in ACTIONS) == (name is None):
            raise CommandError("Give a name, but for list and sync, which take none.")
        if (action == "update") != bool(options["changes"]):
            raise CommandError("Give what to change as KEY=VALUE with update, and with it alone.")
        try:
            said = ACTIONS[action](alias, options) if name else EVERY[action](alias)
        except (AlkstoreError, TypeError) as exc:
            raise CommandError(str(exc)) from exc
        self.stdout.write(said)


def show(alias: str) -> str:
    return schedule_table(snapshot(alias).schedules)


def synced(alias: str) -> str:
    done = sync(alias)
    if done is None:
        raise CommandError("Another process is putting declared schedules in force: try again.")
    told = [f"{name} {SYNCED[what]}" for what, names in vars(done).items() for name in names]
    return "\n".join(told) or "nothing to change"


def pause(alias: str, options: dict[str, Any]) -> str:
    name = options["name"]
    if not pause_schedule(name, alias):
        raise CommandError(f"There is no schedule {name!r} that is not paused.")
    return f"{name} is paused"


def resume(alias: str, options: dict[str, Any]) -> str:
    name = options["name"]
    if not resume_schedule(name, alias):
        raise CommandError(f"There is no schedule {name!r} that is paused.")
    return f"{name} is resumed"


def fire(alias: str, options: dict[str, Any]) -> str:
    name = options["name"]
    job_id = fire_now(name, f"{user_name()}, by command", alias)
    if job_id is None:
        raise _unknown(name)
    return f"{name} fired: job {job_id}"


def update(alias: str, options: dict[str, Any]) -> str:
    name = options["name"]
    if update_schedule(name, alias, **dict(map(change, options["changes"]))) is None:
        raise _unknown(name)
    return f"{name} is updated"


def next_ones(alias: str, options: dict[str, Any]) -> str:
    name = options["name"]
    if not (boundaries := upcoming(name, options["count"], alias)):
        raise CommandError(f"There is no schedule {name!r} that has a boundary ahead.")
    return aligned(["local", "UTC", ""], [[*one.shown, one.change] for one in boundaries])


def change(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as JSON, or as an instant, or as it is."""
    key, sign, value = text.partition("=")
    if not sign:
        raise CommandError(f"Expected KEY=VALUE, got {text!r}.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, _instant(value) if key in ("starts_at", "ends_at") else value


def _instant(value: str) -> Any:
    try:
        return parse_datetime(value) or value
    except ValueError:
        return value


def user_name() -> str:
    """Who runs the command; in a container, the user may have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


def _unknown(name: str) -> CommandError:
    return CommandError(f"There is no schedule {name!r}.")


SYNCED = {
    "added": "was added",
    "changed": "was changed",
    "removed": "was removed",
    "by_hand": "was made by hand, and stays as it is",
}
EVERY = {"list": show, "sync": synced}
ACTIONS = {"pause": pause, "resume": resume, "fire": fire, "update": update, "next": next_ones}
