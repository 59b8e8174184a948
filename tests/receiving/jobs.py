"""Deliveries and handlers for process tests: each writes to the journal that it was entered, then misbehaves if
its payload asks for it.

The journal is the file that ``RECEIVING_JOURNAL`` names; a line is written in one append.
"""

import json
import os
import signal
import time
from pathlib import Path

from django.db import DatabaseError, connection

from django_alkstore import delivery, handler
from testproject.shop.models import Order


def journal():
    return Path(os.environ["RECEIVING_JOURNAL"])


def die(job):
    os._exit(137)


def be_killed_once(job):
    if job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_leave(job):
    while not journal().with_suffix(".leave").exists():
        time.sleep(0.02)


def fail_once(job):
    if job.attempts == 1:
        raise RuntimeError("not today")


def end_the_session(job):
    """On PostgreSQL and MySQL: the session of this connection, as the server would end it."""
    ends = {
        "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
        "mysql": "KILL CONNECTION_ID()",
    }
    with connection.cursor() as cursor:
        cursor.execute(ends[connection.vendor])


def end_the_session_and_return(job):
    try:
        end_the_session(job)
    except DatabaseError:
        pass


def end_the_session_once(job):
    if job.attempts == 1:
        end_the_session(job)


def place_an_order(job):
    Order.objects.create(email="ada@example.com", item="a book")


MISBEHAVIOURS = {
    f.__name__: f
    for f in (
        die,
        be_killed_once,
        wait_for_leave,
        fail_once,
        end_the_session_and_return,
        end_the_session_once,
        place_an_order,
    )
}


@handler("tasks")
@handler("errands")
@delivery("letters")
def receive(job):
    entered = {
        "key": job.idempotency_key,
        "attempt": job.attempts,
        "payload": job.payload,
        "worker": job.worker_id,
    }
    with journal().open("a") as file:
        file.write(json.dumps(entered) + "\n")
    if job.payload in MISBEHAVIOURS:
        MISBEHAVIOURS[job.payload](job)


@handler("long-tasks", heartbeat=True)
def receive_long(job):
    receive(job)
