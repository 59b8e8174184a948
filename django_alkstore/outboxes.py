"""The transactional outbox: a queue with a reserved backing name and its own defaults.

A message is one row, written on the caller's connection in the caller's transaction; it is
delivered at least once if that commits, and never existed if it rolls back. Hand
``job.idempotency_key`` to the receiver, so that it can tell a second delivery from a second message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import reads, sql
from .exceptions import InvalidOption, expected
from .names import backing_queue, outbox_of, valid_name
from .queues import ClaimedJob, Queue, process
from .registry import deliveries


def outbox(name: str, using: str | None = None) -> Outbox:
    """The outbox ``name``. ``using`` is a database alias; raises InvalidName or ReservedName."""
    return Outbox(valid_name("outbox", name), using)


def outbox_enqueue_tx(
    outbox_name: str, payload: object, using: str | None = None, **options: Any
) -> int:
    """``outbox(outbox_name).enqueue_tx(payload, ...)``."""
    return outbox(outbox_name, using).enqueue_tx(payload, **options)


def unserved_outboxes(using: str | None = None) -> list[str]:
    """The outboxes that have live messages and no registered delivery in this process."""
    engine = sql.engine(using)
    return [
        name
        for name in map(outbox_of, reads.queue_names(engine))
        if name is not None
        and deliveries.get(name) is None
        and engine.peek([backing_queue(name)]).has_live_rows
    ]


class Outbox:
    """Messages that wait for their delivery. The options are those of ``Queue``."""

    def __init__(self, name: str, using: str | None = None) -> None:
        self.name = name
        self.queue = Queue(backing_queue(name), using)

    def __repr__(self) -> str:
        return f"<Outbox {self.name}>"

    def enqueue(self, payload: object, **options: Any) -> int:
        """Enqueue a message and return its id; joins an open transaction, else commits itself."""
        return self.queue.enqueue(payload, **options)

    def enqueue_tx(self, payload: object, **options: Any) -> int:
        """Enqueue in the open ``transaction.atomic()``; raises TransactionRequired without one.

        The one to call next to the business write.
        """
        return self.queue.enqueue_tx(payload, **options)

    def enqueue_many(self, payloads: Iterable[object], /, **options: Any) -> list[int]:
        """Enqueue a message for each payload, all or none, and return the ids in their order."""
        return self.queue.enqueue_many(payloads, **options)

    def run_once(self, worker_id: str, delivery: Callable[[ClaimedJob], object]) -> bool:
        """Claim one message and hand it to ``delivery``; False if there is none.

        A delivery that returns is acked, one that raises is retried on the curve until its
        attempts are used up. It issues no heartbeat: ``job.heartbeat()`` is the delivery's.
        """
        if not callable(delivery):
            raise InvalidOption(expected("delivery", "callable", delivery))
        job = self.queue.claim(worker_id)
        if job is None:
            return False
        process(job, delivery)
        return True
