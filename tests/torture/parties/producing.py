"""A producer: ``python -m tests.torture.parties.producing NUMBER SEED`` places orders until SIGTERM.

Each job that is enqueued in a transaction has an order written beside it, with the same mark: the
job must exist exactly if the order does, whatever the producer was told before it was killed.
"""

import contextlib
import itertools
import os
import random
import sys
import time

import django

if __name__ == "__main__":
    django.setup()

from django.db import Error, connection, transaction

from django_alkstore import StopToken, outbox, queue, schedule
from django_alkstore.shutdown import stop_on_signals
from testproject.shop.models import Order

from ..drawing import drawn
from ..history import journal
from .acts import WEIGHTS

LATE_SECONDS = 0.6  # how long a transaction may stay open: on SQLite nobody else writes meanwhile


class Producer:
    def __init__(self, name, seed, journal):
        self.random = random.Random(f"{name} {seed}")
        self.journal = journal
        self.acts = drawn(self.random, WEIGHTS)
        self.ways = drawn(self.random, self.WAYS)
        self.marks = (f"{name}-{os.getpid()}-{n}" for n in itertools.count())

    def place(self):
        """One way to enqueue."""
        way = next(self.ways)
        way(self)
        self.journal.write("placed", way=way.__name__)

    # -- the ways -------------------------------------------------------------------------------

    def commit(self):
        with self.transaction() as marks:
            self.order_and_enqueue(marks)

    def commit_late(self):
        with self.transaction() as marks:
            self.order_and_enqueue(marks)
            time.sleep(self.random.uniform(0, LATE_SECONDS))

    def roll_back(self):
        with contextlib.suppress(ChangedItsMind), self.transaction() as marks:
            self.order_and_enqueue(marks)
            raise ChangedItsMind

    def roll_back_a_savepoint(self):
        with self.transaction() as marks:
            self.order_and_enqueue(marks)
            with contextlib.suppress(ChangedItsMind), transaction.atomic():
                self.order_and_enqueue([])
                raise ChangedItsMind

    def commit_many(self):
        with self.transaction() as marks:
            some = [next(self.marks) for _ in range(self.random.randint(2, 20))]
            marks += some
            Order.objects.bulk_create(self.order(mark) for mark in some)
            options, since = self.options(), time.monotonic()
            ids = self.target().enqueue_many([self.payload(mark) for mark in some], **options)
            for id, mark in zip(ids, some, strict=True):
                self.journal.write("enqueued", id=id, mark=mark, since=since, **options)

    def enqueue_alone(self):
        mark, options = next(self.marks), self.options()
        self.journal.write("placing", marks=[mark])
        self.enqueue(self.target().enqueue, mark, **options)
        self.journal.write("committed", marks=[mark])

    def cancel_one(self):
        mark = next(self.marks)
        self.journal.write("placing", marks=[mark])
        id = self.enqueue(queue("chores").enqueue, mark, delay=5)
        self.journal.write("committed", marks=[mark])
        cancelled = queue("chores").cancel(id)
        self.journal.write("cancelled", id=id, matched=cancelled)

    def register_again(self):
        for name in SCHEDULES:
            register(name)

    WAYS = {
        commit: 30, commit_late: 4, roll_back: 10, roll_back_a_savepoint: 8, commit_many: 4,
        enqueue_alone: 10, cancel_one: 2, register_again: 2,
    }  # fmt: skip

    # -- their parts ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self):
        """A transaction, and what became of it in the journal."""
        marks = []
        try:
            with transaction.atomic():
                yield marks
                # With a connection that was lost inside a savepoint Django rolls back and raises
                # nothing.
                undone = connection.needs_rollback
        except ChangedItsMind:
            self.journal.write("rolled back", marks=marks)
            raise
        self.journal.write("rolled back" if undone else "committed", marks=marks)

    def order_and_enqueue(self, marks):
        mark, options = next(self.marks), self.options()
        marks.append(mark)
        steps = [
            lambda: self.order(mark).save(),
            lambda: self.enqueue(self.target().enqueue_tx, mark, **options),
        ]
        self.random.shuffle(steps)
        for step in steps:
            step()

    def enqueue(self, verb, mark, **options):
        since = time.monotonic()
        id = verb(self.payload(mark), **options)
        self.journal.write("enqueued", id=id, mark=mark, since=since, **options)
        return id

    def order(self, mark):
        return Order(email="ada@example.com", item=mark)

    def target(self):
        return self.random.choice([outbox("letters"), outbox("parcels"), queue("chores")])

    def payload(self, mark):
        return {"mark": mark, "act": next(self.acts).__name__}

    def options(self):
        pick = self.random.choice
        options = {
            "max_attempts": pick([1, 2, 3, 5]),
            "visibility_timeout": pick([1.0, 1.5]),
            "backoff": pick([0, 0.05, 0.2]),
            "priority": pick([0, 0, 0, 5, -5]),
        }
        if self.random.random() < 0.2:
            options["delay"] = pick([0.3, 1.0])
        if self.random.random() < 0.1:
            options["expires_in"] = pick([0.2, 1.0])
        return options


class ChangedItsMind(Exception):
    pass


SCHEDULES = {  # name: spec and options
    "each_second": ("@every 1s", {}),
    "each_other_second": ("@every 2s", {}),
    "one_at_a_time": ("@every 2s", {"overlap": "queue"}),
    "unless_the_last_is_alive": ("@every 2s", {"overlap": "skip"}),
    "behind": ("@every 1s", {}),
    "behind_for_the_latest": ("@every 2s", {"catch_up": "latest"}),
    "behind_for_none": ("@every 2s", {"catch_up": "none"}),
}


def register(name):
    spec, options = SCHEDULES[name]
    payload = {"mark": None, "act": "fine"}
    return schedule(name, spec, "reports", payload, max_attempts=5, **options)


def main():
    stop = StopToken()
    number, seed = sys.argv[1:]
    producer = Producer(number, seed, journal())
    with stop_on_signals(stop):
        while not stop.is_cancelled:
            try:
                producer.place()
            except Error as exc:
                producer.journal.write("producer failed", error=str(exc))
                connection.close()
            stop.wait(producer.random.uniform(0, 0.08))


if __name__ == "__main__":
    main()
