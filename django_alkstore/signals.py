"""What the package tells the project, beside its logs.

The signals are sent once the thing is written down: by the thread that wrote it, with ``sender``
None, and never on the way of an enqueue. What a receiver raises is logged by Django and changes
nothing; a slow one delays its worker. In a transaction of the caller's own, which may still roll
back, they are sent before it commits. Nothing is promised beyond that: a process that is killed
between the write and the signal sends none.

``job_dead``: queue, job_id, attempts (None if a sweep found it), error.
``job_retried``: queue, job_id, attempts, error, delay (seconds).
``lease_lost``: queue, job_ids, lost: so many of these write-backs came too late.
``schedule_fired``: schedule, boundary (None: by hand), queue, job_id, by (the leader or a person).
``leadership_gained``: owner. ``leadership_lost``: owner, reason ("released" or "taken over").
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

job_dead = Signal()
job_retried = Signal()
lease_lost = Signal()
schedule_fired = Signal()
leadership_gained = Signal()
leadership_lost = Signal()


def send(signal: Signal, **what: Any) -> None:
    """Tell the receivers; none of them can fail the sender."""
    signal.send_robust(None, **what)


# What ``extra=`` of the records under the logger django_alkstore may hold; never more than these.
LOG_KEYS = {
    "alias": "the database",
    "attempts": "claims of the job so far",
    "boundary": "the due instant of a schedule",
    "count": "how many rows the record is about",
    "delay": "seconds until it is tried again",
    "job_id": "the job's id",
    "lock": "the name of a lock",
    "max_attempts": "after so many claims the job is dead",
    "owner": "who holds the scheduler's lease",
    "queue": "the queue as rows have it: an outbox by its backing name",
    "schedule": "the schedule's name",
    "worker_id": "the worker's name",
}
