"""Old rows are deleted while a worker is busy: what its claims take meanwhile, and what it costs.

    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.pruning [--quick]

1,000,000 jobs that died or were done sixty days ago, and 100,000 fires of a hundred days ago: first
``alkstore_prune``, beside 300 jobs a second; then the same rows again, and a scheduler that never
has a pause, with 100 schedules every second, for a minute.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from datetime import timedelta

import django

DEAD, DONE, FIRES = 500_000, 500_000, 100_000
QUEUES = ["mails", "reports"]
SCHEDULES = 100


def seed(share: float) -> int:
    """Old rows and a few that must stay; how many are old."""
    from django.utils import timezone

    from django_alkstore.models import Fire
    from tests.factories import FireFactory
    from tests.piles import pile

    now = timezone.now()
    old = {"finished_at": f"'{now - timedelta(days=60):%Y-%m-%d %H:%M:%S}'"}
    for queue in QUEUES:
        pile("dead", int(DEAD * share) // 2, queue=queue, **old)
        pile("done", int(DONE * share) // 2, queue=queue, **old)
        pile("dead", 100, queue=queue)
    fires = int(FIRES * share)
    Fire.objects.bulk_create(
        (
            FireFactory.build(
                boundary=now - timedelta(days=100, seconds=n), fired_at=now - timedelta(days=100)
            )
            for n in range(fires)
        ),
        batch_size=1_000,
    )
    return int(DEAD * share) + int(DONE * share) + fires


def old_rows() -> int:
    from django.utils import timezone

    from django_alkstore.models import Fire, Job

    then = timezone.now() - timedelta(days=50)
    return (
        Job.objects.filter(finished_at__lt=then).count()
        + Fire.objects.filter(fired_at__lt=then).count()
    )


def by_command(count: int, seconds: float) -> None:
    """Beside a worker and a producer, in turns: without it, with it, without it."""
    from .measures import children, claims_of, report, tell

    with children("claims", 1) as (worker,), children("enqueue", 1) as (producer,):
        tell([worker, producer])
        time.sleep(seconds)
        print(f"before     {claims_of(worker)}", flush=True)
        with children("prune", 1) as (pruner,):
            tell([pruner])
            told = report(pruner)
        print(f"meanwhile  {claims_of(worker)}", flush=True)
        time.sleep(seconds)
        print(f"after      {claims_of(worker)}", flush=True)
    rate = count / told["seconds"]
    print(f"alkstore_prune: {count:,} rows in {told['seconds']:.1f} s, {rate:,.0f} a second; "
          f"slowest statement {told['slowest']:.3f} s, memory {told['memory']:.0f} MB;"
          f" {old_rows()} left", flush=True)  # fmt: skip


def by_leader(seconds: float) -> None:
    """As many schedules every second as it can fire, and no pause."""
    from django_alkstore import schedule
    from django_alkstore.models import Fire

    from .measures import children, report, tell

    for n in range(SCHEDULES):
        schedule(f"schedule-{n}", "@every 1s", "nobody-s")
    before = old_rows()
    with children("lead", 1) as (leader,):
        tell([leader])
        time.sleep(seconds)
        gone, fired = before - old_rows(), Fire.objects.filter(schedule__startswith="sche").count()
        tell([leader])
        told = report(leader)
    print(f"a busy leader: {gone:,} rows in {seconds:.0f} s, {gone / seconds:,.0f} a second, "
          f"beside {fired / seconds:,.0f} fires a second; slowest statement "
          f"{told['slowest']:.3f} s, memory {told['memory']:.0f} MB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of it: for function")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable(logging.WARNING)
    from django.db import connection

    share, seconds = (0.01, 2) if options.quick else (1.0, 30)
    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        print(connection.display_name, flush=True)
        by_command(seed(share), seconds)
        seed(share)
        by_leader(2 * seconds)
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)


if __name__ == "__main__":
    main()
