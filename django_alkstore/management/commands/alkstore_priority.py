"""Priorities by hand. The number has an option of its own, so that no id can be taken for it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...operations import priority_verb
from ...options import INT_MAX, whole_number
from ..base import argument
from ..selecting import SelectingCommand

priority = argument(lambda text: whole_number("it", int(text), -INT_MAX - 1))


class Command(SelectingCommand):
    help = "Give jobs that nobody has claimed another priority."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--to", type=priority, required=True, help="the larger go first")

    def handle(self, *args: Any, **options: Any) -> None:
        self.verb = priority_verb(options["to"])
        super().handle(*args, **options)
