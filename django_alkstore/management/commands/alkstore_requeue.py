from ...operations import REQUEUE
from ..selecting import SelectingCommand


class Command(SelectingCommand):
    help = "Let dead jobs run again, with all their attempts."
    verb = REQUEUE
