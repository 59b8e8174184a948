"""Pruning by hand or by cron, beside the leading scheduler's: a batch at a time, resting in between.

It may be stopped at any moment and run again; a dry run counts what is there, and takes no lock.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandError

from ... import sql
from ...retention import Pruned, batches, doomed, finished
from ..base import DatabaseCommand
from ..selecting import Progress, add_queue_arguments, age, queue_of, resting

BATCH = 1_000


class Command(DatabaseCommand):
    help = (
        "Delete dead and done jobs, fires and counts that have outlived their time, or with "
        "--older-than the finished jobs of a queue. Jobs that wait or run are never deleted."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_queue_arguments(parser)
        parser.add_argument("--state", choices=["dead", "done"], help="default: both")
        parser.add_argument("--older-than", type=age, help="finished so many seconds ago")
        parser.add_argument("--dry-run", action="store_true", help="say how many, delete nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        engine = sql.engine(self.migrated_alias(options["database"]))
        queue, life = queue_of(options), options["older_than"]
        states = [options["state"]] if options["state"] else ["dead", "done"]
        if (queue is None) != (life is None):
            raise CommandError("Give --older-than with a --queue or --outbox, or none of them.")
        if queue is None and options["state"]:
            raise CommandError("--state is for --older-than.")
        if options["dry_run"]:
            self.report(doomed(engine, queue, states, life), "would be deleted")
        elif queue is None:
            self.report(resting(batches(engine, BATCH)), "deleted")
        else:
            each = (b for state in states for b in finished(engine, queue, state, life, BATCH))
            self.report(resting(each), "deleted")

    def report(self, batches: Iterable[Pruned], done: str) -> None:
        counts: Counter[str] = Counter()
        progress = Progress(self.stdout)
        for batch in batches:
            counts[batch.what] += batch.count
            progress.say(", ".join(f"{counts[what]} {what}" for what in counts))
        progress.end()
        words = {"dead": "dead jobs", "done": "done jobs", "fire": "fires", "count": "counts"}
        for what, word in words.items():
            if what in counts:
                self.stdout.write(f"{counts[what]} {word} {done}")
