"""What an old snapshot costs on PostgreSQL, which has to keep every version that it might still see.

    ALKSTORE_DATABASE_URL=postgresql://... python -m tests.benchmarks.old_snapshot [--tuned] [--quick]

300 jobs a second are enqueued, claimed and acked beside 1,000,000 finished ones, before, while and
after a REPEATABLE READ transaction is held for five minutes. Every 30 seconds a line: what a claim
took, the dead tuples that the server knows of, and the size of the table and of the claim's index.
``--tuned``: with the autovacuum settings that the README recommends. The server's own autovacuum
must be on.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django

TUNED = """ALTER TABLE django_alkstore_job SET (autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000)"""
SEEN = """SELECT n_dead_tup, autovacuum_count, pg_relation_size('django_alkstore_job') >> 20,
    pg_relation_size('alkstore_job_claim') >> 20, pg_relation_size('alkstore_job_due') >> 20
    FROM pg_stat_user_tables WHERE relname = 'django_alkstore_job'"""
FINISHED = 1_000_000


def watch(child: Any, what: str, seconds: float, step: float) -> None:
    """A line for each step."""
    from django.db import connection

    from .measures import claims_of

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(step, max(0.0, until - time.monotonic())))
        with connection.cursor() as cursor:
            cursor.execute(SEEN)
            dead, vacuums, *sizes = cursor.fetchone()
        print(
            f"{what:<7} {claims_of(child)}  dead {dead:>8,}  table {{}} MB, indexes {{}} and {{}} MB"
            f"  vacuums {vacuums}".format(*sizes),
            flush=True,
        )


@contextmanager
def held_snapshot() -> Iterator[None]:
    from django.db import connection

    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM django_alkstore_job LIMIT 1")
            yield
            cursor.execute("COMMIT")
    finally:
        other.close()


def seed(count: int, tuned: bool) -> None:
    from django.db import connection

    from tests.piles import pile

    from .bare import QUEUE

    pile("done", count, queue=QUEUE)
    with connection.cursor() as cursor:
        if tuned:
            cursor.execute(TUNED)
        cursor.execute("VACUUM ANALYZE django_alkstore_job")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuned", action="store_true", help="with the settings recommended")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for function")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable(logging.WARNING)
    from django.db import connection

    from .measures import children, tell

    share = 0.01 if options.quick else 1
    step = 30 * share
    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        seed(int(FINISHED * share), options.tuned)
        with children("claims", 1) as (child,), children("enqueue", 1) as (producer,):
            tell([child, producer])
            watch(child, "before", 90 * share, step)
            with held_snapshot():
                watch(child, "during", 300 * share, step)
            watch(child, "after", 180 * share, step)
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)


if __name__ == "__main__":
    main()
