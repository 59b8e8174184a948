"""The worker over queues. It claims of those alone that it has a handler for, so no job dies for want
of one.
"""

from ...queues import Queue, queue
from ...registry import handlers
from ..base import WorkerCommand


class Command(WorkerCommand):
    help = "Run the jobs of queues: of those named, or of every one with a handler."
    registry = handlers

    def queue(self, name: str, alias: str) -> Queue:
        return queue(name, alias)
