"""Rows as a test needs them: a few words say the state, the rest is plausible."""

from datetime import datetime, timedelta

import factory
from django.utils import timezone

from django_alkstore import models
from testproject.shop.models import Order


class Instant(datetime):
    """An aware datetime that knows itself in what models show where USE_TZ is off: local time."""

    __hash__ = datetime.__hash__

    def __eq__(self, other):
        return super().__eq__(aware(other))

    def __sub__(self, other):
        return super().__sub__(aware(other))

    def __rsub__(self, other):
        return -super().__sub__(aware(other))


def aware(value):
    """The value, with the zone of the project if it is a datetime without one."""
    is_local = isinstance(value, datetime) and timezone.is_naive(value)
    return timezone.make_aware(value) if is_local else value


def ago(seconds=0):
    return timezone.now() - timedelta(seconds=seconds)


class JobFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = models.Job

    queue = "reports"
    state = "ready"
    payload = factory.LazyFunction(dict)
    run_at = factory.LazyFunction(ago)
    max_attempts = 3
    visibility_timeout = 300.0
    backoff = 5.0
    created_at = factory.LazyFunction(ago)

    class Params:
        scheduled = factory.Trait(
            state="scheduled",
            run_at=factory.LazyFunction(lambda: ago(-60)),
            due_at=factory.SelfAttribute("run_at"),
        )
        running = factory.Trait(
            state="running",
            attempts=1,
            worker_id="another",
            claim_token=factory.Sequence(lambda n: 10**12 + n),
            due_at=factory.LazyFunction(lambda: ago(-60)),
        )
        lapsed = factory.Trait(running=True, due_at=factory.LazyFunction(lambda: ago(1)))
        expired = factory.Trait(
            expires_at=factory.LazyFunction(lambda: ago(1)),
            due_at=factory.SelfAttribute("expires_at"),
        )
        dead = factory.Trait(
            state="dead", attempts=3, last_error="boom", finished_at=factory.LazyFunction(ago)
        )
        done = factory.Trait(state="done", attempts=1, finished_at=factory.LazyFunction(ago))


class ScheduleFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = models.Schedule

    name = factory.Sequence(lambda n: f"schedule-{n}")
    spec = "@every 1m"
    queue = "reports"
    next_fire_at = factory.LazyFunction(lambda: ago(-60))
    created_at = factory.LazyFunction(ago)
    updated_at = factory.LazyFunction(ago)

    class Params:
        overdue = factory.Trait(next_fire_at=factory.LazyFunction(lambda: ago(1)))


class FireFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = models.Fire

    schedule = "nightly"
    boundary = factory.Sequence(lambda n: ago(-60 * n))
    fired_at = factory.LazyFunction(ago)
    job_id = factory.Sequence(int)
    leader = "host:1:aa"


class LockFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = models.Lock

    name = factory.Sequence(lambda n: f"lock-{n}")
    owner = "host:1:aa"
    token = 1
    acquired_at = factory.LazyFunction(ago)
    expires_at = factory.LazyFunction(lambda: ago(-60))


class CountFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = models.Count

    queue = "reports"
    minute = factory.LazyFunction(lambda: ago().replace(second=0, microsecond=0))


class OrderFactory(factory.django.DjangoModelFactory):
    class Meta:
        model = Order

    email = "ada@example.com"
    item = "a book"
