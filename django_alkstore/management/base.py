"""What the commands share: the database option, the refusal to run unmigrated, the worker."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from .. import conf, sql
from ..backoff import seconds
from ..checks import LABEL, lacks_migrations
from ..exceptions import InvalidName, InvalidOption
from ..holds import Source
from ..names import valid_name
from ..options import valid_worker_id, whole_number
from ..queues import BATCH_MAX, Queue
from ..registry import Registry, autodiscover
from ..shutdown import StopToken, stop_on_signals
from ..workers import Limits, Worker, default_worker_id

Value = TypeVar("Value")
THREADS_MAX = 1_000


class DatabaseCommand(BaseCommand):
    """A command that works on our tables in one database."""

    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", help="alias of the database, if not the default")

    def migrated_alias(self, given: str | None) -> str:
        """The alias to work on; raises CommandError if it is unknown, down or unmigrated."""
        try:
            alias = sql.write_alias(given)
        except InvalidOption as exc:
            raise CommandError(str(exc)) from exc
        try:
            sql.engine(alias).own_connection()  # before a read opens a transaction
            lacking = lacks_migrations(alias)
        except Error as exc:
            raise CommandError(f"The database {alias!r} cannot be reached: {exc}") from exc
        if lacking:
            raise CommandError(
                f"The database {alias!r} lacks migrations of {LABEL}: run 'manage.py migrate'."
            )
        return alias


def argument(check: Callable[[str], Value]) -> Callable[[str], Value]:
    """``check`` as an argparse type: its InvalidOption becomes the parser's message."""

    def parse(text: str) -> Value:
        try:
            return check(text)
        except InvalidOption as exc:
            raise ArgumentTypeError(str(exc)) from exc

    parse.__name__ = "number"  # argparse names it when int() or float() fails
    return parse


class WorkerCommand(DatabaseCommand):
    """run_outbox and run_queue: a worker over registered callables."""

    registry: Registry

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("names", nargs="*", metavar="NAME", help="default: every registered one")
        add("--concurrency", type=thread_count, default=1, help="threads (1: the main one)")
        add("--batch-size", type=batch_size, default=Limits.batch_size, help="claim at most")
        add("--poll-interval", type=positive_seconds, help="seconds; default: POLL_INTERVAL")
        add("--grace", type=any_seconds, default=Limits.grace, help="seconds after a stop signal")
        add("--max-jobs", type=positive_int, help="end after so many")
        add("--once", action="store_true", help="process one job at most, and end")
        add("--burst", action="store_true", help="end when no job is ready")
        add("--worker-id", type=worker_id, help="default: host and process id")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = StopToken()
        with stop_on_signals(stop):
            alias = self.migrated_alias(options["database"])
            autodiscover()
            sources = self.sources(options["names"], alias)
            identity = options["worker_id"] or default_worker_id()
            watch = partial(self.watch, alias)
            worker = Worker(sources, identity, stop, limits(options), watch)
            if options["once"] or options["burst"]:
                worker.burst()
            else:
                worker.run()

    def sources(self, names: list[str], alias: str) -> list[Source]:
        """What the worker is to serve; raises CommandError for a name without a callable."""
        kind, what = self.registry.kind, self.registry.what
        try:
            wanted = [valid_name(kind, name) for name in dict.fromkeys(names)]
        except InvalidName as exc:
            raise CommandError(str(exc)) from exc
        if missing := [name for name in wanted if self.registry.get(name) is None]:
            raise CommandError(f"The {kind} {missing[0]!r} has no {what} in any app's jobs.py.")
        if not (wanted := wanted or self.registry.names()):
            raise CommandError(f"No {what} is registered in any app's jobs.py.")
        return [
            Source(self.queue(name, alias), self.registry.get(name),
                   self.registry.has_heartbeat(name))
            for name in wanted
        ]  # fmt: skip

    def queue(self, name: str, alias: str) -> Queue:
        """The queue behind a registered name."""
        raise NotImplementedError

    def watch(self, alias: str) -> None:
        """Called now and then while the worker runs."""


def limits(options: dict[str, Any]) -> Limits:
    """What the options say of how to work."""
    interval = options["poll_interval"] or conf.current().POLL_INTERVAL
    most = 1 if options["once"] else options["max_jobs"]
    return Limits(interval, options["concurrency"], options["batch_size"], options["grace"], most)


positive_int = argument(lambda text: whole_number("it", int(text), 1))
batch_size = argument(lambda text: whole_number("it", int(text), 1, BATCH_MAX))
thread_count = argument(lambda text: whole_number("it", int(text), 1, THREADS_MAX))
positive_seconds = argument(lambda text: seconds("it", float(text), above_zero=True))
any_seconds = argument(lambda text: seconds("it", float(text)))
worker_id = argument(valid_worker_id)
