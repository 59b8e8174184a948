"""The scheduler as a process. Any number may run: one leads, and another takes over once its lease is
free or has lapsed. A database that fails is waited for, but not with ``--once``, which ends.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, connections

from ...declared import Declaring
from ...exceptions import LeadershipLost
from ...scheduler import Scheduler, run_schedules
from ...shutdown import StopToken, stop_on_signals
from ..base import DatabaseCommand

logger = logging.getLogger(__name__)

STANDBY_SECONDS = 1.0


class Command(DatabaseCommand):
    help = "Fire the schedules while this process leads; stand by while another does."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--once", action="store_true", help="fire what is due now, and end")
        parser.add_argument(
            "--exit-on-loss", action="store_true", help="end with 1 instead of standing by"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stop = StopToken()
        with stop_on_signals(stop):
            alias = self.migrated_alias(options["database"])
            try:
                if options["once"]:
                    run_once(stop, alias)
                elif options["exit_on_loss"]:
                    run_schedules(stop, alias)
                else:
                    self.run_or_stand_by(stop, alias)
            except LeadershipLost as exc:
                raise CommandError(str(exc)) from exc

    def run_or_stand_by(self, stop: StopToken, alias: str) -> None:
        standing_by, declaring = False, Declaring(alias)
        while not stop.is_cancelled:
            scheduler = Scheduler(alias, declaring)
            try:
                scheduler.lead()
                standing_by = False
                scheduler.fire_until(stop)
            except LeadershipLost:
                if not standing_by:
                    self.stdout.write("Another scheduler leads; standing by.")
                standing_by = True
                declaring.stand_by()
            except Error:
                logger.warning("the database failed; standing by", exc_info=True,
                               extra={"alias": alias})  # fmt: skip
                connections[alias].close()
            stop.wait(STANDBY_SECONDS)


def run_once(stop: StopToken, alias: str) -> None:
    scheduler = Scheduler(alias)
    scheduler.lead()
    scheduler.fire_due(stop)
