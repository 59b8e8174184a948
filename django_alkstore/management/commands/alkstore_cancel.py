from ...operations import CANCEL
from ..selecting import SelectingCommand


class Command(SelectingCommand):
    help = "Let jobs die that nobody has claimed."
    verb = CANCEL
