"""The six tables. ``due_at`` is the one idea of the job table: the instant at which the row next
needs attention, null for never.

Scheduled: when it becomes ready. Running: when its claim lapses. Ready: when it expires. So one
index finds everything that time alone can change. The statements that the guarantees depend on
are in ``sql``; what is here serves people: the admin, the shell, the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import Q
from django.utils.timezone import get_default_timezone, is_naive, make_aware, make_naive

import django_alkstore

from .names import BACKING_NAME_MAX, NAME_MAX, shown_name
from .options import OPTIONS, WORKER_ID_MAX
from .specs import SPEC_MAX
from .timetables import CATCH_UPS, OVERLAPS, TIMES

OWNER_MAX = 255
ZONE_MAX = 64
WHY_MAX = 40


def words(known: Iterable[str]) -> list[tuple[str, str]]:
    """Choices that read as they are stored."""
    return [(word, word) for word in known]


def shown(instant: datetime) -> datetime:
    """An aware instant as this project's models show it: naive local time where USE_TZ is off."""
    if settings.USE_TZ:
        return instant
    try:
        return make_naive(instant, get_default_timezone())  # not the zone of a request
    except OverflowError:  # at the very end of the calendar, as a sentinel written by hand is
        return instant.replace(tzinfo=None)


class InstantField(models.DateTimeField):
    """A DateTimeField that stores the same instant whatever USE_TZ and the zones of settings say.

    Where the database has no time zones the column holds UTC: local time would repeat an hour
    every autumn, and a lease must not.
    """

    def get_db_prep_value(self, value, connection, prepared=False):
        if not prepared:
            value = self.get_prep_value(value)
        if not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared=True)
        if is_naive(value):
            value = make_aware(value, get_default_timezone())
        value = value.astimezone(timezone.utc)
        if connection.features.supports_timezones:
            return value
        return connection.ops.adapt_datetimefield_value(value.replace(tzinfo=None))

    def select_format(self, compiler, sql, params):
        """NULL for what no datetime can hold, 'infinity' say: such a row must not break a page."""
        if not compiler.connection.features.supports_timezones:
            return sql, params
        held = "BETWEEN '0001-01-02' AND '9999-12-30'"
        return f"CASE WHEN {sql} {held} THEN {sql} END", (*params, *params)

    def from_db_value(self, value, expression, connection):
        if value is None or connection.features.supports_timezones:
            return value
        # The backend has labelled the column's UTC with the connection's zone.
        return shown(value.replace(tzinfo=timezone.utc))


class PartialIndex(models.Index):
    """An index over the rows ``where``; without partial indexes, over all rows by ``elsewhere``."""

    def __init__(self, *, where: Q, elsewhere: list[str], **kwargs) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.elsewhere = elsewhere

    def create_sql(self, model, schema_editor, using="", **kwargs):
        if schema_editor.connection.features.supports_partial_indexes:
            plain = models.Index(fields=self.fields, name=self.name, condition=self.where)
        else:
            plain = models.Index(fields=self.elsewhere, name=self.name)
        return plain.create_sql(model, schema_editor, using, **kwargs)

    def deconstruct(self):
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "where": self.where, "elsewhere": self.elsewhere}


class Row(models.Model):
    """What the six models share."""

    id = models.BigAutoField(primary_key=True)

    class Meta:
        abstract = True

    @classmethod
    def check(cls, **kwargs) -> list[checks.CheckMessage]:
        """Without the warning that SQLite has no comments: there they are a courtesy forgone."""
        return [m for m in super().check(**kwargs) if m.id != "fields.W163"]


class State(models.TextChoices):
    READY = "ready"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class Job(Row):
    """One row of work."""

    queue = models.CharField(max_length=BACKING_NAME_MAX)
    state = models.CharField(max_length=9, choices=State.choices)
    priority = models.IntegerField(default=0, db_comment="larger first")
    payload = models.JSONField(encoder=DjangoJSONEncoder)
    run_at = InstantField(db_comment="when it is first to run; orders jobs of one priority")
    due_at = InstantField(
        null=True, db_comment="when the row next needs attention: ready, claim lapsed, expired"
    )
    attempts = models.IntegerField(default=0, db_comment="claims so far, the running one included")
    max_attempts = models.IntegerField()
    visibility_timeout = models.FloatField(db_comment="seconds that a claim holds")
    backoff = models.FloatField(db_comment="seconds before the first retry, doubled for each next")
    worker_id = models.CharField(max_length=WORKER_ID_MAX, null=True)
    claim_token = models.BigIntegerField(null=True, db_comment="the fence: new for each claim")
    expires_at = InstantField(null=True, db_comment="not to start after this")
    schedule = models.CharField(max_length=NAME_MAX, null=True)
    scheduled_for = InstantField(null=True, db_comment="the schedule's boundary")
    last_error = models.TextField(null=True)
    last_traceback = models.TextField(null=True)
    created_at = InstantField()
    finished_at = InstantField(null=True)

    class Meta:
        db_table = "django_alkstore_job"
        permissions = [
            ("requeue_job", "Can requeue dead jobs"),
            ("run_job", "Can let jobs run now"),
            ("cancel_job", "Can cancel jobs"),
            ("prioritise_job", "Can change the priority of jobs"),
        ]
        indexes = [
            PartialIndex(
                name="alkstore_job_claim",
                fields=["queue", "-priority", "run_at", "id"],
                where=Q(state="ready"),
                # With expires_at: a claim on MySQL would look up, and lock, each expired row.
                elsewhere=["queue", "state", "-priority", "run_at", "id", "expires_at"],
            ),
            # Rows that must have a due_at are in it without one too, so that they can be repaired.
            PartialIndex(
                name="alkstore_job_due",
                fields=["queue", "due_at"],
                where=Q(due_at__isnull=False) | Q(state="running") | Q(state="scheduled"),
                elsewhere=["queue", "state", "due_at"],
            ),
            PartialIndex(
                name="alkstore_job_finished",
                fields=["queue", "state", "finished_at"],
                where=Q(finished_at__isnull=False),
                elsewhere=["queue", "state", "finished_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"job {self.pk} of {shown_name(self.queue)} ({self.state})"

    @property
    def claim_expires_at(self) -> datetime | None:
        """When the claim of a running job lapses; None for a job that is not running."""
        return self.due_at if self.state == State.RUNNING else None


class Schedule(Row):
    """Enqueues one job per boundary. An option that is null is the target queue's."""

    name = models.CharField(max_length=NAME_MAX, unique=True)
    spec = models.CharField(max_length=SPEC_MAX)
    queue = models.CharField(max_length=NAME_MAX)
    payload = models.JSONField(encoder=DjangoJSONEncoder, null=True, blank=True)
    priority = models.IntegerField(null=True, blank=True)
    max_attempts = models.IntegerField(null=True, blank=True)
    visibility_timeout = models.FloatField(null=True, blank=True)
    backoff = models.FloatField(null=True, blank=True)
    expires_in = models.FloatField(null=True, blank=True)
    timezone = models.CharField(
        max_length=ZONE_MAX, null=True, blank=True, db_comment="of @cron; null: TIME_ZONE"
    )
    catch_up = models.CharField(
        max_length=6, choices=words(CATCH_UPS), default="all", db_default="all",
        db_comment="which boundaries that were missed are fired late",
    )  # fmt: skip
    overlap = models.CharField(
        max_length=5, choices=words(OVERLAPS), default="allow", db_default="allow",
        db_comment="at a boundary while the last job is alive: fire, drop it, or wait",
    )  # fmt: skip
    jitter = models.FloatField(
        default=0.0, db_default=0.0, db_comment="seconds: its jobs run up to so much later"
    )
    starts_at = InstantField(null=True, blank=True, db_comment="no boundary before this")
    ends_at = InstantField(null=True, blank=True, db_comment="no boundary after this")
    max_fires = models.BigIntegerField(null=True, blank=True, db_comment="ends after so many")
    enabled = models.BooleanField(default=True)
    declared = models.BooleanField(
        default=False, db_default=False, editable=False, db_comment="in code or settings"
    )
    fires = models.BigIntegerField(
        default=0, db_default=0, editable=False, db_comment="boundaries fired so far"
    )
    next_fire_at = InstantField(null=True, editable=False, db_comment="the next boundary")
    last_fired_at = InstantField(null=True, editable=False, db_comment="the last boundary fired")
    ended_at = InstantField(
        null=True, editable=False, db_comment="when it was found to have no boundary any more"
    )
    created_at = InstantField(editable=False)
    updated_at = InstantField(editable=False)

    OPTIONS = OPTIONS
    TIMES = TIMES

    class Meta:
        db_table = "django_alkstore_schedule"
        permissions = [
            ("pause_schedule", "Can pause and resume schedules"),
            ("fire_schedule", "Can fire schedules by hand"),
        ]
        indexes = [
            PartialIndex(
                name="alkstore_schedule_due",
                fields=["next_fire_at"],
                where=Q(enabled=True),
                elsewhere=["enabled", "next_fire_at"],
            ),
        ]

    def __str__(self) -> str:
        return self.name

    # The verbs are the package's public ones, for this row, and look at the table anew.

    def pause(self) -> bool:
        """Fire it no more until it is resumed; False if it is paused already, or gone."""
        return django_alkstore.pause_schedule(self.name, using=self._state.db)

    def resume(self) -> bool:
        """Fire it again; False if it is not paused, or gone."""
        return django_alkstore.resume_schedule(self.name, using=self._state.db)

    def change(self, **changes: Any) -> Schedule | None:
        """See ``update_schedule``; the row as stored, None if it is gone."""
        return django_alkstore.update_schedule(self.name, using=self._state.db, **changes)

    def fire_now(self, by: str = "") -> int | None:
        """Enqueue one job at once; its id, None if the schedule is gone."""
        return django_alkstore.fire_now(self.name, by, using=self._state.db)

    def next_boundaries(self, n: int = 10) -> list[datetime]:
        """The next boundaries, on the clocks of its own zone."""
        return django_alkstore.next_boundaries(self.name, n, using=self._state.db)


class Fire(Row):
    """The record that a boundary was enqueued; ``job_id`` is no foreign key: jobs get deleted.

    One that a person fired has no boundary, so that it can stand for none. One without a job is the
    record that a boundary was dropped.
    """

    schedule = models.CharField(max_length=NAME_MAX)
    boundary = InstantField(null=True, db_comment="null: fired by hand")
    fired_at = InstantField()
    job_id = models.BigIntegerField(null=True, db_comment="null: this boundary was dropped")
    leader = models.CharField(max_length=OWNER_MAX, db_comment="the scheduler or person that fired")
    skipped = models.BigIntegerField(
        default=0, db_comment="boundaries dropped right after this, or, without a job, from this on"
    )
    why = models.CharField(
        max_length=WHY_MAX, default="", db_default="", db_comment="they were dropped"
    )

    class Meta:
        db_table = "django_alkstore_fire"
        constraints = [
            models.UniqueConstraint(fields=["schedule", "boundary"], name="alkstore_fire_once"),
        ]
        indexes = [
            PartialIndex(
                name="alkstore_fire_skipped",
                fields=["fired_at"],
                where=Q(skipped__gt=0),
                elsewhere=["skipped", "fired_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule} " + (f"at {self.boundary}" if self.boundary else "by hand")


class Declaration(Row):
    """A set of declared schedules that a scheduler has had; of two, the newer has the larger id."""

    digest = models.CharField(max_length=64, unique=True)
    seen_at = InstantField(db_comment="when a scheduler last said that it has the set")

    class Meta:
        db_table = "django_alkstore_declaration"

    def __str__(self) -> str:
        return self.digest[:12]


class Lock(Row):
    """A named lease. A released one keeps its row, so that ``token`` only ever grows."""

    name = models.CharField(max_length=NAME_MAX, unique=True)
    owner = models.CharField(max_length=OWNER_MAX, blank=True, db_comment="empty: released")
    token = models.BigIntegerField(db_comment="grows with every acquisition")
    acquired_at = InstantField()
    expires_at = InstantField()

    class Meta:
        db_table = "django_alkstore_lock"
        permissions = [("release_lock", "Can release locks")]

    def __str__(self) -> str:
        return self.name


class Count(Row):
    """What workers did with the jobs of one queue in one minute: statistics, not a ledger."""

    queue = models.CharField(max_length=BACKING_NAME_MAX)
    minute = InstantField(db_comment="its start")
    claimed = models.BigIntegerField(default=0)
    acked = models.BigIntegerField(default=0)
    retried = models.BigIntegerField(default=0)
    died = models.BigIntegerField(default=0, db_comment="failed, lapsed or expired")
    lost = models.BigIntegerField(default=0, db_comment="write-backs that came too late")

    FIGURES = ("claimed", "acked", "retried", "died", "lost")

    class Meta:
        db_table = "django_alkstore_count"
        constraints = [
            models.UniqueConstraint(fields=["queue", "minute"], name="alkstore_count_once"),
        ]

    def __str__(self) -> str:
        return f"{shown_name(self.queue)} at {self.minute}"
