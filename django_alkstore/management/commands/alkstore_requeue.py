"""Requeueing by hand. Only what is dead when its turn comes is changed, so twice does no harm."""

from ...operations import REQUEUE
from ..selecting import SelectingCommand


class Command(SelectingCommand):
    help = "Let dead jobs run again, with all their attempts."
    verb = REQUEUE
