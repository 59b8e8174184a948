"""What the commands share: the database option, and the refusal to run unmigrated."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor

from .. import sql
from ..backoff import seconds
from ..exceptions import InvalidOption
from ..options import valid_worker_id, whole_number

Value = TypeVar("Value")
LABEL = "django_alkstore"


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
            executor = MigrationExecutor(connections[alias])
        except Error as exc:
            raise CommandError(f"The database {alias!r} cannot be reached: {exc}") from exc
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == LABEL]
        if executor.migration_plan(targets):
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

    parse.__name__ = "value"  # argparse names it when int() or float() fails
    return parse


positive_int = argument(lambda text: whole_number("it", int(text), 1))
positive_seconds = argument(lambda text: seconds("it", float(text), above_zero=True))
worker_id = argument(valid_worker_id)
