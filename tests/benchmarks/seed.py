"""Fill a database with jobs, to look at the admin and the commands with: 2,000,000 by default.

    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.seed --rows 2000000 [--measure]

Half of them are dead, the rest ready, scheduled, lapsed and done, in five queues and an outbox.
``--measure`` prints statements and seconds of a snapshot and of the commands, the second time each.
"""

from __future__ import annotations

import argparse
import io
import time
from datetime import timedelta

import django

QUEUES = {"reports": 0.4, "mails": 0.25, "images": 0.15, "exports": 0.1, "imports": 0.05}
OUTBOX = "receipts"
KINDS = {"dead": 0.5, "ready": 0.25, "scheduled": 0.125, "done": 0.1, "lapsed": 0.025}


def seed(rows: int) -> None:
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.utils import timezone

    from django_alkstore.models import Count, Fire, Schedule
    from django_alkstore.names import backing_queue
    from tests.piles import pile

    call_command("migrate", verbosity=0)
    shares = {**QUEUES, backing_queue(OUTBOX): 1 - sum(QUEUES.values())}
    for queue, share in shares.items():
        for kind, part in KINDS.items():
            for priority in (0, 5) if kind == "ready" else (0,):
                count = int(rows * share * part / (2 if kind == "ready" else 1))
                with transaction.atomic():
                    pile(kind, count, queue=queue, priority=priority)
    now = timezone.now().replace(second=0, microsecond=0)
    Count.objects.bulk_create(
        [
            Count(queue=queue, minute=now - timedelta(minutes=n), claimed=90, acked=80, retried=9)
            for queue in shares
            for n in range(1_440)
        ],
        batch_size=1_000,
    )
    stamps = {"created_at": now, "updated_at": now}
    for n in range(50):
        Schedule.objects.create(
            name=f"schedule-{n}", spec="@every 1h", queue="reports",
            next_fire_at=now + timedelta(minutes=n), **stamps,
        )  # fmt: skip
        Fire.objects.bulk_create(
            Fire(
                schedule=f"schedule-{n}", boundary=now - timedelta(hours=h), fired_at=now,
                job_id=h + 1, leader="seed", skipped=h % 100 == 0,
            )
            for h in range(500)
        )  # fmt: skip
    with connection.cursor() as cursor:
        for table in ("job", "fire", "count"):
            analyze = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
            cursor.execute(f"{analyze} django_alkstore_{table}")
            cursor.fetchall() if connection.vendor == "mysql" else None


def measure() -> None:
    from django.core.management import call_command

    from django_alkstore.status import is_well, snapshot
    from django_alkstore.views import snapshot_metrics

    def command(*args: str):
        return lambda: call_command(*args, stdout=io.StringIO())

    report("snapshot", snapshot)
    report("health", is_well)
    report("metrics", snapshot_metrics)
    report("alkstore_status", command("alkstore_status"))
    report("alkstore_schedules", command("alkstore_schedules"))
    report("alkstore_requeue --dry-run", command("alkstore_requeue", "--all", "--dry-run"))
    report("alkstore_prune --dry-run", command("alkstore_prune", "--dry-run"))


def report(name: str, call) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    call()
    with CaptureQueriesContext(connection) as captured:
        began = time.monotonic()
        call()
        took = time.monotonic() - began
    slowest = max(float(query["time"]) for query in captured)
    print(f"{name:30} {len(captured):5} statements {took:8.3f} s, slowest {slowest:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--measure", action="store_true", help="measure only: seed nothing")
    options = parser.parse_args()
    django.setup()
    if not options.measure:
        seed(options.rows)
    measure()


if __name__ == "__main__":
    main()
