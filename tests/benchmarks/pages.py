"""What people open on a big table: statements and seconds of each page, command and probe.

    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.seed
    ALKSTORE_DATABASE_URL=... python -m tests.benchmarks.pages

The second time each, with those of the session and of the user, as a page that is open all day. What
needs a second or more, or more than twelve statements, is marked: no page should be, while a command
that somebody runs by hand may look at one queue after the other.
"""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import django

SECONDS, STATEMENTS = 1.0, 12


def report(name: str, look: Callable[[], object]) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    look()
    with CaptureQueriesContext(connection) as captured:
        began = time.monotonic()
        look()
        took = time.monotonic() - began
    slowest = max((float(query["time"]) for query in captured), default=0.0)
    print(
        f"{name:<50}{len(captured):>5} statements{took:>8.3f} s, slowest {slowest:.3f} s"
        f"{'  MORE THAN A SECOND' if took >= SECONDS else ''}"
        f"{'  MORE THAN TWELVE' if len(captured) > STATEMENTS else ''}",
        flush=True,
    )


def pages() -> Iterator[tuple[str, str]]:
    """The name and the address of each page."""
    from django_alkstore.models import Fire, Job, Schedule, State
    from django_alkstore.names import backing_queue

    from .seed import OUTBOX

    jobs, outbox = "/admin/django_alkstore/job/", backing_queue(OUTBOX)
    yield "overview", "/admin/django_alkstore/"
    yield "jobs", jobs
    filters: list[dict[str, Any]] = [{"state": state} for state in State.values]
    filters += [{"state": "running", "queue": "tenant-7"}, {"state": "dead", "queue": "reports"}]
    filters += [{"queue": name} for name in ("reports", outbox, "tenant-7", "of-no-jobs")]
    filters += [{"age": age} for age in ages()]
    filters += [{"state": "ready", "age": "older-week"}, {"schedule": "schedule-7"}]
    newest = Job.objects.order_by("-id").first()
    searches = [
        newest.pk,
        "reports",
        "tenant-7",
        f"outbox {OUTBOX}",
        f"reports:{newest.pk}",
        "none",
    ]
    for given in [*filters, *({"q": term} for term in searches)]:
        yield "jobs?" + urlencode(given).replace(outbox, OUTBOX), f"{jobs}?{urlencode(given)}"
    yield "a job", f"{jobs}{Job.objects.order_by('id')[0].pk}/change/"
    yield "a job of a schedule", f"{jobs}{newest.pk}/change/"
    yield "fires", "/admin/django_alkstore/fire/"
    yield "fires?q=schedule-7", "/admin/django_alkstore/fire/?q=schedule-7"
    yield "a fire", f"/admin/django_alkstore/fire/{Fire.objects.order_by('id')[0].pk}/change/"
    yield "schedules", "/admin/django_alkstore/schedule/"
    yield "a schedule", f"/admin/django_alkstore/schedule/{Schedule.objects.first().pk}/change/"
    yield "locks", "/admin/django_alkstore/lock/"


def ages() -> list[str]:
    from django_alkstore.lists import AGES

    return list(AGES)


def look_at_pages() -> None:
    """Each page as somebody sees it who may do everything; of a list, the last one too."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    users = get_user_model().objects
    client.force_login(
        users.filter(username="bench").first() or users.create_superuser("bench", "", "bench")
    )

    def look(address: str) -> Any:
        response = client.get(address)
        assert response.status_code == 200, f"{address}: {response.status_code}"
        return response

    for name, address in pages():
        report(name, lambda address=address: look(address))
        listed = getattr(look(address), "context_data", {}).get("cl")
        if listed is not None and listed.paginator.num_pages > 1:
            last = f"{address}{'&' if '?' in address else '?'}p={listed.paginator.num_pages}"
            report(f"{name}, its last page", lambda last=last: look(last))


def look_at_commands() -> None:
    from django.core.management import call_command

    from django_alkstore.status import is_well
    from django_alkstore.views import snapshot_metrics

    def command(*args: str) -> Callable[[], object]:
        return lambda: call_command(*args, stdout=io.StringIO())

    report("health", is_well)
    report("metrics", snapshot_metrics)
    report("alkstore_status", command("alkstore_status"))
    report("alkstore_schedules", command("alkstore_schedules"))
    report("alkstore_requeue --dry-run", command("alkstore_requeue", "--all", "--dry-run"))
    report("alkstore_prune --dry-run", command("alkstore_prune", "--dry-run"))


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable(logging.WARNING)
    from django.db import connection

    print(f"{connection.display_name}, the second time each", flush=True)
    look_at_pages()
    look_at_commands()


if __name__ == "__main__":
    main()
