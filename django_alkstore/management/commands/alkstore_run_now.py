"""Running now by hand. A job that has become ready meanwhile, or is claimed, is left alone."""

from ...operations import RUN_NOW
from ..selecting import SelectingCommand


class Command(SelectingCommand):
    help = "Make jobs ready that wait for a delay or a retry."
    verb = RUN_NOW
