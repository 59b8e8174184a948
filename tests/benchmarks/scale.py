"""The hot path on a big table: what each verb takes, and what its plan goes by.

    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.scale [--quick]

Finished, delayed, expired and ready jobs in one queue and then over fifty, first as seeded and then
after ANALYZE. It is the worst order for a claim: the expired ones are in front of the ready ones,
and nobody has swept yet. A verdict names the indexes that the statements of a verb go by, and every
sort and walk of a table that the database means to do.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import django

KINDS = {"done": 800_000, "dead": 200_000, "scheduled": 200_000, "expired": 50_000, "ready": 20_000}
SCHEDULES, DUE_SCHEDULES = 10_000, 100
SAMPLES = 200


@dataclass(frozen=True)
class Measured:
    what: str
    milliseconds: list[float]
    verdict: str

    def __str__(self) -> str:
        from .measures import spread

        return f"  {self.what:<26}{spread(self.milliseconds)}  {self.verdict}"


# -- rows -----------------------------------------------------------------------------------------


def seed(queues: list[str], share: float) -> None:
    """Finished and delayed jobs, schedules, and what a round of measures uses up."""
    from django.db import connection

    from tests.factories import ScheduleFactory

    with connection.cursor() as cursor:
        for table in ("job", "schedule"):
            cursor.execute(f"DELETE FROM django_alkstore_{table}")
        if connection.vendor == "postgresql":  # or it would analyze on its own
            cursor.execute("ALTER TABLE django_alkstore_job SET (autovacuum_enabled = FALSE)")
            cursor.execute("VACUUM django_alkstore_job")
    ScheduleFactory._meta.model.objects.bulk_create(
        ScheduleFactory.build_batch(int(SCHEDULES * share))
        + ScheduleFactory.build_batch(int(DUE_SCHEDULES * share), overdue=True)
    )
    pile_up(queues, share, ["done", "dead", "scheduled"])


def pile_up(queues: list[str], share: float, kinds: list[str]) -> None:
    from tests.piles import pile

    for kind in kinds:
        for queue in queues:
            count = max(1, int(KINDS[kind] * share / len(queues)))
            pile(kind, count, queue=queue, priority=9 if kind == "scheduled" else 0)


def renew(queues: list[str], share: float) -> None:
    """The expired and the ready ones, as they were before the last round."""
    from django_alkstore.models import Job

    Job.objects.filter(state__in=["ready", "running"]).delete()
    pile_up(queues, share, ["expired", "ready"])


def analyze() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        for table in ("job", "schedule"):
            word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
            cursor.execute(f"{word} django_alkstore_{table}")
            if connection.vendor == "mysql":
                cursor.fetchall()


# -- measures -------------------------------------------------------------------------------------


def measures(names: list[str], samples: int) -> Iterator[Measured]:
    """Every verb in turn, over the queues in turn: those of the first lines behind the expired."""
    from django_alkstore import queue, sql

    engine = sql.engine()
    queues = itertools.cycle(map(queue, names))
    name = itertools.cycle(names)
    claimed: dict[int, list] = {1: [], 50: []}

    def claim(count: int) -> Callable[[], object]:
        return lambda: claimed[count].append(next(queues).claim_batch("w", count))

    def ack(count: int) -> Callable[[], object]:
        def ack_one_batch() -> None:
            jobs = claimed[count].pop()
            queue(jobs[0].queue).ack_batch(jobs)

        return ack_one_batch

    few = max(2, samples // 20)
    yield measured("claim 1, the statement", few, lambda: engine.claim(next(name), "w", 1, 1))
    yield measured("claim 50, the statement", few, lambda: engine.claim(next(name), "w", 1, 50))
    yield measured("sweep, full", few, lambda: engine.sweep(next(name)))
    yield measured("claim 50, with a sweep", few, claim(50))
    yield measured("claim 1, with a sweep", samples, claim(1))
    while any(engine.sweep(each).full for each in names):
        pass
    yield measured("claim 1", samples, claim(1))
    yield measured("claim 50", samples // 2, claim(50))
    yield measured("ack 1", samples, ack(1))
    yield measured("ack 50", samples // 2, ack(50))
    yield measured("sweep, of nothing", samples, lambda: engine.sweep(next(name)))
    yield measured("peek", samples, lambda: engine.peek(names))
    now = sql.utc_now()
    yield measured("due schedules", samples, lambda: engine.schedules_due(now, 50, []))
    yield measured("next boundary", samples, lambda: engine.next_boundary(now, []))


def measured(what: str, samples: int, verb: Callable[[], object]) -> Measured:
    taken = []
    for _ in range(samples):
        began = time.perf_counter()
        verb()
        taken.append(1000 * (time.perf_counter() - began))
    return Measured(what, taken, verdict_on(verb))


def verdict_on(verb: Callable[[], object]) -> str:
    from tests.plans import faults_of, indexes_of, plans_of

    indexes: set[str] = set()
    faults: list[str] = []
    for plan in plans_of(verb).values():
        indexes |= indexes_of(plan)
        faults += faults_of(plan)
    by = ", ".join(sorted(name.removeprefix("alkstore_") for name in indexes)) or "no index"
    return by + "".join(f"; {fault.upper()}" for fault in sorted(set(faults)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of it: for function")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable(logging.WARNING)
    from django.db import connection

    share, samples, layouts = (0.1, 10, (1, 5)) if options.quick else (1.0, SAMPLES, (1, 50))
    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        for count in layouts:
            names = [f"queue-{n}" for n in range(count)]
            seed(names, share)
            for state in ("never analyzed", "analyzed"):
                renew(names, share)
                if state == "analyzed":
                    analyze()
                print(f"{connection.display_name}, {count} queues, {state}", flush=True)
                for row in measures(names, samples):
                    print(row, flush=True)
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)


if __name__ == "__main__":
    main()
