"""Fill a database with jobs, to look at the admin and the commands with: 2,000,000 by default.

    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.seed --rows 2000000

Half of them are dead, the rest ready, scheduled, lapsed and done, in five queues, an outbox and 300
small queues, enqueued over the last thirty days; and the ledger of fifty schedules. ``pages`` measures
what people open.
"""

from __future__ import annotations

import argparse
import os
from datetime import datetime, timedelta

import django

QUEUES = {"reports": 0.4, "mails": 0.25, "images": 0.15, "exports": 0.1, "imports": 0.05}
OUTBOX = "receipts"
KINDS = {"dead": 0.5, "ready": 0.25, "scheduled": 0.125, "done": 0.1, "lapsed": 0.025}
SMALL_QUEUES, SMALL = 300, 20
DAYS = 30
SCHEDULES, FIRES = 50, 1_000


def seed(rows: int) -> None:
    from django.core.management import call_command
    from django.utils import timezone

    from django_alkstore.names import backing_queue

    call_command("migrate", verbosity=0)
    shares = {**QUEUES, backing_queue(OUTBOX): 1 - sum(QUEUES.values())}
    now = timezone.now().replace(second=0, microsecond=0)
    for days in range(DAYS, 0, -1):
        for queue, share in shares.items():
            seed_day(queue, int(rows * share / DAYS), now - timedelta(days=days))
    for n in range(SMALL_QUEUES):
        seed_day(f"tenant-{n}", SMALL, now - timedelta(hours=1))
    seed_counts(list(shares), now)
    seed_schedules(now)
    analyze()


def seed_day(queue: str, count: int, at: datetime) -> None:
    """A queue's jobs of one day, of every kind; ready ones in two priorities."""
    from django.db import transaction

    from tests.piles import pile

    created = f"'{at:%Y-%m-%d %H:%M:%S}'"
    with transaction.atomic():
        for kind, part in KINDS.items():
            times = {"created_at": created}
            if kind in ("dead", "done"):
                times["finished_at"] = created
            for priority in (0, 5) if kind == "ready" else (0,):
                some = int(count * part / (2 if kind == "ready" else 1))
                if some:
                    pile(kind, some, queue=queue, priority=priority, **times)


def seed_counts(queues: list[str], now: datetime) -> None:
    from django_alkstore.models import Count

    Count.objects.bulk_create(
        [
            Count(queue=queue, minute=now - timedelta(minutes=n), claimed=90, acked=80, retried=9)
            for queue in queues
            for n in range(1_440)
        ],
        batch_size=1_000,
    )


def seed_schedules(now: datetime) -> None:
    """Schedules that have fired every hour, with their last jobs still there."""
    from django_alkstore.models import Fire, Schedule
    from tests.factories import JobFactory

    for n in range(SCHEDULES):
        name = f"schedule-{n}"
        Schedule.objects.create(
            name=name, spec="@every 1h", queue="reports", last_fired_at=now,
            next_fire_at=now + timedelta(minutes=n), created_at=now, updated_at=now,
        )  # fmt: skip
        boundaries = [now - timedelta(hours=hours) for hours in range(FIRES)]
        jobs = type(JobFactory.build()).objects.bulk_create(
            JobFactory.build(dead=True, schedule=name, scheduled_for=at, created_at=at)
            for at in boundaries
        )
        Fire.objects.bulk_create(
            Fire(
                schedule=name, boundary=job.scheduled_for, fired_at=job.scheduled_for,
                job_id=job.pk, leader="seed", skipped=hours % 100 == 0,
            )
            for hours, job in enumerate(jobs)
        )  # fmt: skip


def analyze() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        for table in ("job", "schedule", "fire", "count"):
            word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
            cursor.execute(f"{word} django_alkstore_{table}")
            if connection.vendor == "mysql":
                cursor.fetchall()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    seed(options.rows)


if __name__ == "__main__":
    main()
