"""The worker over outboxes. Messages without a delivery in this process are left where they are, and
it warns of them now and then.
"""

import logging

from ...names import backing_queue
from ...outboxes import outbox, unserved_outboxes
from ...queues import Queue
from ...registry import deliveries
from ..base import WorkerCommand

logger = logging.getLogger("django_alkstore.outboxes")


class Command(WorkerCommand):
    help = "Deliver the messages of outboxes: of those named, or of every one with a delivery."
    registry = deliveries

    def queue(self, name: str, alias: str) -> Queue:
        return outbox(name, alias).queue

    def watch(self, alias: str) -> None:
        for name in unserved_outboxes(alias):
            logger.warning("outbox %s has messages and no delivery: they wait", name,
                           extra={"queue": backing_queue(name), "alias": alias})  # fmt: skip
