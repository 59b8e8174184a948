"""Two schedulers over many schedules that are due in the same minute; one of them is killed.

    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.failover [--schedules 500] [--minutes 3]

After half of the minutes the leader gets SIGKILL. At the end: how many fires, by which of the
two, and how late the latest was; exit code 1 unless each boundary of each schedule has exactly one
fire and one job. The kill comes half a minute before the next boundary, or with ``--at-boundary`` two
seconds before it, so that it waits for the lease to lapse.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import django

SPEC = "@cron * * * * *"


def race(schedules: int, minutes: int, ahead: float) -> int:
    from django.utils import timezone

    from django_alkstore import schedule
    from tests.processes import Process, manage

    for n in range(schedules):
        schedule(f"schedule-{n}", SPEC, "nobody-s")
    first = timezone.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
    outputs = Path(tempfile.mkdtemp())
    leader = Process(manage("run_schedules"), outputs / "leader.txt")
    leader.until_says("leading as")
    standby = Process(manage("run_schedules"), outputs / "standby.txt")
    try:
        wait_until(first + timedelta(minutes=minutes // 2 + 1, seconds=-ahead))
        leader.kill()
        wait_until(first + timedelta(minutes=minutes - 1, seconds=40))
        print(f"exit code of the one that was not killed: {standby.terminate()}")
    finally:
        leader.kill()
        standby.kill()
    return told(schedules, first, minutes)


def wait_until(instant: Any) -> None:
    from django.utils import timezone

    time.sleep(max(0.0, (instant - timezone.now()).total_seconds()))


def told(schedules: int, first: Any, minutes: int) -> int:
    from django_alkstore.models import Fire, Job

    rows = list(Fire.objects.filter(boundary__lt=first + timedelta(minutes=minutes)))
    seen = Counter((fire.schedule, fire.boundary) for fire in rows)
    jobs = Counter(Job.objects.values_list("schedule", "scheduled_for"))
    wanted = {
        (f"schedule-{n}", first + timedelta(minutes=m))
        for n in range(schedules)
        for m in range(minutes)
    }
    by = Counter(fire.leader for fire in rows)
    late = [(fire.fired_at - fire.boundary).total_seconds() for fire in rows]
    exact = seen == Counter(wanted) and all(jobs[boundary] == 1 for boundary in wanted)
    print(f"{len(rows):,} fires of {schedules:,} schedules in {minutes} minutes, {max(seen.values())} "
          f"at most for a boundary; missing: {len(wanted - seen.keys())}")  # fmt: skip
    print("by leader:", ", ".join(f"{leader} {count:,}" for leader, count in by.items()))
    print(f"latest: {max(late):.2f} s")
    return 0 if exact else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.failover")
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--minutes", type=int, default=3)
    parser.add_argument("--at-boundary", action="store_true", help="kill two seconds before one")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable(logging.WARNING)
    from django.db import connection

    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        return race(options.schedules, options.minutes, 2 if options.at_boundary else 30)
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
