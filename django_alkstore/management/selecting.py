"""What the commands share that change jobs: which ones, and a progress line on a terminal."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, TypeVar

from django.core.management.base import CommandError

from ..backoff import seconds
from ..exceptions import AlkstoreError
from ..names import backing_queue, valid_name
from ..operations import ID_MAX, Selection, Verb, change, change_selected, windows
from ..options import whole_number
from .base import DatabaseCommand, argument

Step = TypeVar("Step")
LONGEST_REST = 1.0

job_id = argument(lambda text: whole_number("it", int(text), 0, ID_MAX))
age = argument(lambda text: seconds("it", float(text)))


def add_queue_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--queue", help="of this queue")
    parser.add_argument("--outbox", help="of this outbox")


def queue_of(options: dict[str, Any]) -> str | None:
    """The queue that --queue or --outbox names, as rows have it."""
    queue, outbox = options["queue"], options["outbox"]
    if queue is not None and outbox is not None:
        raise CommandError("Give one of --queue and --outbox.")
    try:
        if outbox is not None:
            return backing_queue(valid_name("outbox", outbox))
        return None if queue is None else valid_name("queue", queue)
    except AlkstoreError as exc:
        raise CommandError(str(exc)) from exc


def resting(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, each after a rest as long as the last one: on SQLite it held the one write lock."""
    began = time.monotonic()
    for step in steps:
        yield step
        time.sleep(min(LONGEST_REST, time.monotonic() - began))
        began = time.monotonic()


class Progress:
    """One line that is written over and over, on a terminal alone."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.shows = out.isatty()

    def say(self, text: str) -> None:
        if self.shows:
            self.out.write(f"\r{text:<70}", ending="")
            self.out.flush()

    def end(self) -> None:
        if self.shows:
            self.out.write("")


class SelectingCommand(DatabaseCommand):
    """Does ``verb`` to jobs by id, or to all that the options select."""

    verb: Verb

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("ids", nargs="*", type=job_id, metavar="ID", help="jobs, by id")
        add_queue_arguments(parser)
        parser.add_argument("--schedule", help="fired by this schedule")
        parser.add_argument("--older-than", type=age, help="created so many seconds ago")
        parser.add_argument("--all", action="store_true", help="of every queue")
        parser.add_argument("--dry-run", action="store_true", help="say how many, change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = self.migrated_alias(options["database"])
        selection = Selection(queue_of(options), options["schedule"], None, options["older_than"])
        if options["ids"]:
            if selection != Selection():
                raise CommandError("Give ids, or what selects them.")
            self.change_ids(options["ids"], options["dry_run"], alias)
        elif selection == Selection() and not options["all"]:
            raise CommandError("Say which jobs: ids, --queue, --outbox, --schedule, or --all.")
        elif options["dry_run"]:
            self.count(selection, alias)
        else:
            self.change_all(selection, alias)

    def change_ids(self, ids: Iterable[int], dry_run: bool, alias: str) -> None:
        if dry_run:
            raise CommandError("--dry-run is for what is selected, not for ids.")
        changed = change(self.verb, ids, alias)
        for id, state in changed.left.items():
            self.stdout.write(f"job {id} is {state} and was left alone")
        self.stdout.write(f"{len(changed.ids)} {self.verb.done}")

    def count(self, selection: Selection, alias: str) -> None:
        found = sum(len(window.ids) for window in windows(self.verb, selection, alias))
        self.stdout.write(f"{found} would be {self.verb.done}")

    def change_all(self, selection: Selection, alias: str) -> None:
        done = left = 0
        progress = Progress(self.stdout)
        for window, changed in resting(change_selected(self.verb, selection, alias)):
            done, left = done + len(changed.ids), left + len(changed.left)
            percent = 100 * window.last // max(1, window.until)
            progress.say(f"{percent} %, {done} {self.verb.done}")
        progress.end()
        self.stdout.write(f"{done} {self.verb.done}, {left} left alone")
