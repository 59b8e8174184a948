from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ... import conf
from ...exceptions import InvalidName
from ...names import valid_name
from ...outboxes import outbox
from ...registry import autodiscover, deliveries
from ...shutdown import StopToken, stop_on_signals
from ...workers import Source, Worker, default_worker_id
from ..base import DatabaseCommand, positive_int, positive_seconds, worker_id


class Command(DatabaseCommand):
    help = "Deliver the messages of outboxes: of those named, or of every one with a delivery."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("names", nargs="*", metavar="NAME", help="default: every registered")
        parser.add_argument("--once", action="store_true", help="deliver one message at most")
        parser.add_argument("--burst", action="store_true", help="end when nothing is ready")
        parser.add_argument("--max-jobs", type=positive_int, help="end after so many")
        parser.add_argument("--poll-interval", type=positive_seconds, help="seconds")
        parser.add_argument("--worker-id", type=worker_id, help="default: host and process id")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = StopToken()
        with stop_on_signals(stop):
            alias = self.migrated_alias(options["database"])
            autodiscover()
            worker = Worker(
                self.sources(options["names"], alias),
                options["worker_id"] or default_worker_id(),
                stop,
                options["poll_interval"] or conf.current().POLL_INTERVAL,
                options["max_jobs"],
            )
            if options["once"]:
                worker.one()
            elif options["burst"]:
                worker.burst()
            else:
                worker.run()

    def sources(self, names: list[str], alias: str) -> list[Source]:
        try:
            wanted = [valid_name("outbox", name) for name in dict.fromkeys(names)]
        except InvalidName as exc:
            raise CommandError(str(exc)) from exc
        sources = []
        for name in wanted or deliveries.names():
            call = deliveries.get(name)
            if call is None:
                raise CommandError(f"The outbox {name!r} has no delivery in any app's jobs.py.")
            sources.append(Source(outbox(name, alias).queue, call))
        if not sources:
            raise CommandError("No delivery is registered in any app's jobs.py.")
        return sources
