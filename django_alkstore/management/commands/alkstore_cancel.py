"""Cancelling by hand. A job that a worker has claimed is left to it, and counted as left alone."""

from ...operations import CANCEL
from ..selecting import SelectingCommand


class Command(SelectingCommand):
    help = "Let jobs die that nobody has claimed."
    verb = CANCEL
