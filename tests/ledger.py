"""Boundaries as tests speak of them: in seconds after noon, in the ledger and on jobs."""

from datetime import timedelta, timezone

from django_alkstore.models import Fire, Job
from django_alkstore.scheduler import Scheduler

from .factories import Instant, aware

NOON = Instant(2024, 3, 1, 12, tzinfo=timezone.utc)


def at(seconds):
    """Noon and some seconds."""
    return NOON + timedelta(seconds=seconds)


def tick_all(now, scheduler=None):
    scheduler = scheduler or Scheduler()
    while scheduler.tick(aware(now)):
        pass


def fired(name=None):
    """The boundaries that the ledger has, in seconds after noon."""
    rows = Fire.objects.filter(schedule=name) if name else Fire.objects.all()
    return [
        (at - NOON).total_seconds()
        for at in rows.order_by("boundary").values_list("boundary", flat=True)
    ]


def jobs(name=None):
    """The boundaries that jobs were enqueued for, in seconds after noon."""
    rows = Job.objects.filter(schedule=name) if name else Job.objects.all()
    found = rows.order_by("scheduled_for").values_list("scheduled_for", flat=True)
    return [(at - NOON).total_seconds() for at in found]
