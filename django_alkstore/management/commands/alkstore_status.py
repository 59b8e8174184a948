"""One snapshot on a terminal, for programs or as a probe: reads alone, whose cost has a bound.

The exit code is 1 if, and only if, ``--check`` found something or the database cannot be asked.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...options import whole_number
from ...status import OLD_SECONDS, Snapshot, as_plain, problems, snapshot
from ..base import DatabaseCommand, argument
from ..selecting import age
from ..tables import leader_line, queue_table, schedule_table

count = argument(lambda text: whole_number("it", int(text), 0))


class Command(DatabaseCommand):
    help = "Show what waits, runs, died and is late; with --check, exit with 1 if that is too much."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument("--check", action="store_true", help="only say what is wrong, exit 1")
        parser.add_argument(
            "--max-age", type=age, default=OLD_SECONDS, help="seconds ready; default: %(default)s"
        )
        parser.add_argument("--max-dead", type=count, help="dead jobs in a queue; default: any")

    def handle(self, *args: Any, **options: Any) -> None:
        seen = snapshot(self.migrated_alias(options["database"]))
        wrong = problems(seen, options["max_age"], options["max_dead"]) if options["check"] else []
        if options["json"]:
            self.stdout.write(json.dumps(as_plain(seen), default=str, indent=2))
        elif not options["check"]:
            self.show(seen)
        elif not wrong:
            self.stdout.write("ok")
        if wrong:
            raise CommandError("\n".join(wrong))

    def show(self, seen: Snapshot) -> None:
        for warning in seen.warnings:
            self.stdout.write(self.style.WARNING(f"! {warning}"))
        self.stdout.write(queue_table(seen.queues))
        if seen.schedules:
            self.stdout.write("\n" + schedule_table(seen.schedules))
        self.stdout.write("\n" + leader_line(seen.leader))
