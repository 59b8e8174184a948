"""The receiver: writes down every effect, and misbehaves as the payload tells it."""

import os
import random
import signal
import sys
import time
from contextlib import suppress

from django.db import DatabaseError, connection, transaction

from django_alkstore import LockHeld, PermanentError, RetryLater, lock
from testproject.shop.models import Order

from ..history import journal

LEAKED = "leaked"  # an order with this item was written in a transaction that nobody committed


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def receive(job):
    journal().write(
        "entered", id=job.id, token=job.claim_token, attempt=job.attempts, queue=job.queue,
        key=job.idempotency_key, mark=job.payload["mark"], act=job.payload["act"],
        schedule=job.schedule, scheduled_for=job.scheduled_for,
    )  # fmt: skip
    ACTS[job.payload["act"]](job)
    finish(job)


def finish(job):
    journal().write("finished", id=job.id, token=job.claim_token)


# -- what a payload can ask for -------------------------------------------------------------------


def fine(job):
    pass


def fail(job):
    raise RuntimeError("never")


def fail_once(job):
    if job.attempts == 1:
        raise RuntimeError("not today")


def raise_unprintable(job):
    raise Unprintable


def refuse(job):
    raise PermanentError("not for us")


def ask_for_later(job):
    if job.attempts == 1:
        raise RetryLater(0.2)


def leave(job):
    sys.exit(3)


def interrupt(job):
    raise KeyboardInterrupt


def be_killed_once(job):
    if job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def hang(job):
    time.sleep(1.5 * job.visibility_timeout)


def hang_then_ack(job):
    hang(job)
    finish(job)
    job.ack()


def hang_then_write_back(job):
    hang(job)
    verb = random.choice([job.retry, job.fail, job.release, job.heartbeat])
    verb()


def give_back_once(job):
    if random.random() < 0.5:
        job.release()
        raise RuntimeError("given back")


def beat(job):
    for _ in range(4):
        time.sleep(0.4 * job.visibility_timeout)
        if not job.heartbeat():
            raise RuntimeError("taken back")


def hold_a_lock(job):
    try:
        with lock("till", ttl=0.5) as till:
            time.sleep(random.uniform(0, 1.0))
            till.renew()
    except LockHeld:
        raise RetryLater(0.1) from None


def leave_a_transaction_open(job):
    transaction.atomic().__enter__()
    Order.objects.create(email=f"{job.id}@example.com", item=LEAKED)


def leave_a_broken_transaction(job):
    leave_a_transaction_open(job)
    with suppress(DatabaseError):
        connection.cursor().execute("SELECT no_such_column")


def leave_autocommit_off(job):
    connection.set_autocommit(False)
    Order.objects.create(email=f"{job.id}@example.com", item=LEAKED)


def close_the_connection(job):
    connection.close()


def break_the_connection(job):
    connection.ensure_connection()
    connection.connection.close()


def write_and_fail(job):
    with transaction.atomic():
        Order.objects.create(email=f"{job.id}@example.com", item=LEAKED)
        raise RuntimeError("the write goes with it")


WEIGHTS = {
    fine: 60, fail: 3, fail_once: 8, raise_unprintable: 2, refuse: 2, ask_for_later: 3, leave: 2,
    interrupt: 1, be_killed_once: 1, hang: 1, hang_then_ack: 1, hang_then_write_back: 2,
    give_back_once: 2, beat: 1, hold_a_lock: 3, leave_a_transaction_open: 2,
    leave_a_broken_transaction: 2, leave_autocommit_off: 1, close_the_connection: 2,
    break_the_connection: 2, write_and_fail: 2,
}  # fmt: skip
ACTS = {act.__name__: act for act in WEIGHTS}
