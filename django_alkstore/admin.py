"""The admin: jobs, fires and locks to look at, schedules to add and edit.

Opening a page sends SELECTs and takes no lock, however broken the rows are: a payload is read as
text, and an instant far beyond every clock stands for never and shows as "-". What is shown as
relative to now is measured by this host's clock, which decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import is_naive, localtime, make_aware

from . import payloads, sql
from .exceptions import AlkstoreError, InvalidPayload, expected
from .models import Fire, Job, Lock, Row, Schedule, State
from .names import SCHEDULER_LOCK, backing_queue, shown_name, valid_name
from .options import checked
from .schedules import schedule
from .specs import parse_spec

NEVER = "-"
INHERITED = "Empty: what the queue is set to."
YEARS = range(1970, 3000)
DUE_WORDS = {  # what happens at due_at, and what has happened once that has passed
    State.READY: ("expires", "expired"),
    State.SCHEDULED: ("ready", "ready"),
    State.RUNNING: ("claim lapses", "claim lapsed"),
}


# -- how values read ------------------------------------------------------------------------------


def shown_instant(value: datetime | None) -> str:
    """To the second, in the current time zone."""
    if value is None or value.year not in YEARS:
        return NEVER
    return (value if is_naive(value) else localtime(value)).isoformat(" ", "seconds")


def aware(value: datetime) -> datetime:
    return make_aware(value) if is_naive(value) else value


def seconds_until(value: datetime) -> float:
    return (aware(value) - sql.utc_now()).total_seconds()


def shown_span(seconds: float) -> str:
    """A length of time in its largest fitting unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def shown_until(value: datetime | None, will: str, did: str) -> str:
    if value is None or value.year not in YEARS:
        return NEVER
    seconds = seconds_until(value)
    return (
        f"{will} in {shown_span(seconds)}" if seconds > 0 else f"{did} {shown_span(-seconds)} ago"
    )


def shown_due(job: Job) -> str:
    """What happens to the job by time alone, and when."""
    waits_to_expire = job.state == State.SCHEDULED and job.due_at == job.expires_at
    state = State.READY if waits_to_expire else job.state
    return shown_until(job.due_at, *DUE_WORDS.get(state, ("due", "due")))


def preformatted(text: str | None) -> str | SafeString:
    wrapped = '<pre style="margin: 0; white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>'
    return NEVER if text is None else format_html(wrapped, text)


def payload_text(row: Job | Schedule) -> str:
    """The stored payload as indented JSON; as it is where it is none, or none that is accepted."""
    rows = type(row)._base_manager.using(row._state.db).filter(pk=row.pk)
    text = rows.values_list(Cast("payload", models.TextField()), flat=True).first()
    try:
        payload = payloads.decode(text)
        payloads.encode(payload)
    except InvalidPayload:
        return "null" if text is None else text
    return json.dumps(payload, indent=2, ensure_ascii=False)


def instant(name: str) -> Callable[[Row], str]:
    """A column for an instant; Django's own would stumble over those that no zone can show."""

    @admin.display(description=name.replace("_", " "))
    def column(row: Row) -> str:
        return shown_instant(getattr(row, name))

    column.__name__ = name
    return column


# -- what can only be looked at -------------------------------------------------------------------


class WhereTheRowsAre(admin.ModelAdmin):
    """Reads the database that queues and schedules write to."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they count the whole table

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return super().get_queryset(request).using(sql.write_alias())


class ReadOnly(WhereTheRowsAre):
    ordering = ["-id"]
    sortable_by = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False


class QueueFilter(admin.SimpleListFilter):
    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        names = {*sql.engine().queue_names(), *filter(None, [self.value()])}
        return [(name, shown_name(name)) for name in sorted(names, key=shown_name)]

    def queryset(self, request: HttpRequest, queryset: models.QuerySet) -> models.QuerySet:
        return queryset.filter(queue=self.value()) if self.value() else queryset


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ["id", "state_word", "queue_name", "priority", "attempts_made", "due", "age"]
    list_filter = ["state", QueueFilter]
    search_fields = ["id", "queue"]  # shows the box; get_search_results says what it does
    search_help_text = "A job's id, or the exact name of a queue or an outbox."
    fieldsets = [
        (None, {"fields": ["queue_name", "state_word", "due", "attempts_made", "priority",
                           "payload_json"]}),
        ("Last failure", {"fields": ["error", "traceback"]}),
        ("Times", {"fields": [*map(instant, ["created_at", "run_at", "due_at", "expires_at",
                                             "finished_at"])]}),
        ("Claim", {"fields": ["worker_id", "visibility_timeout", "backoff"]}),
        ("Schedule", {"fields": ["schedule", instant("scheduled_for")]}),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return super().get_queryset(request).defer("payload", "last_error", "last_traceback")

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet, search_term: str
    ) -> tuple[models.QuerySet, bool]:
        term = search_term.strip()
        if term.isdecimal() and len(term) < 20:
            return queryset.filter(pk=term), False
        names = [term, backing_queue(term.removeprefix("outbox "))]
        return queryset.filter(Q(queue__in=names) if term else Q()), False

    @admin.display(description="state")
    def state_word(self, job: Job) -> str:
        return job.state  # a word that is no state is shown too

    @admin.display(description="queue")
    def queue_name(self, job: Job) -> str:
        return shown_name(job.queue)

    @admin.display(description="attempts")
    def attempts_made(self, job: Job) -> str:
        return f"{job.attempts} of {job.max_attempts}"

    @admin.display
    def due(self, job: Job) -> str:
        return shown_due(job)

    @admin.display
    def age(self, job: Job) -> str:
        return shown_span(-seconds_until(job.created_at))

    @admin.display(description="payload")
    def payload_json(self, job: Job) -> str:
        return preformatted(payload_text(job))

    @admin.display
    def error(self, job: Job) -> str:
        return preformatted(job.last_error)

    @admin.display
    def traceback(self, job: Job) -> str:
        return preformatted(job.last_traceback)


@admin.register(Fire)
class FireAdmin(ReadOnly):
    list_display = fields = ["schedule", instant("boundary"), instant("fired_at"), "job_id",
                             "skipped", "leader"]  # fmt: skip
    search_fields = ["schedule__exact"]
    search_help_text = "The exact name of a schedule."


@admin.register(Lock)
class LockAdmin(ReadOnly):
    list_display = fields = ["lock_name", "holder", "lease", "token", instant("acquired_at"),
                             instant("expires_at")]  # fmt: skip
    ordering = ["-acquired_at"]
    search_fields = ["name"]

    @admin.display(description="name")
    def lock_name(self, lock: Lock) -> str:
        return "the scheduler's lease" if lock.name == SCHEDULER_LOCK else lock.name

    @admin.display
    def holder(self, lock: Lock) -> str:
        return lock.owner or NEVER

    @admin.display
    def lease(self, lock: Lock) -> str:
        did = "lapsed" if lock.owner else "released"
        return shown_until(lock.expires_at, "lapses", did)


# -- schedules ------------------------------------------------------------------------------------


def payload_of(text: str) -> object:
    """The payload that is typed as JSON; nothing typed is null."""
    try:
        payload = payloads.decode(text or "null")
    except InvalidPayload:
        raise InvalidPayload(expected("payload", "JSON", text)) from None
    payloads.encode(payload)
    return payload


def option_rule(name: str) -> Callable[[object], object]:
    return lambda value: checked({name: value})[name]


class PayloadField(forms.CharField):
    widget = AdminTextareaWidget

    def has_changed(self, initial: str | None, data: str | None) -> bool:
        return super().has_changed(initial, data and data.replace("\r\n", "\n"))


class ScheduleForm(forms.ModelForm):
    """Refuses, beside the field at fault, what ``schedule`` would refuse."""

    payload_text = PayloadField(label="Payload", required=False, help_text="JSON. Empty: null.")

    RULES: dict[str, Callable[[Any], object]] = {
        "name": partial(valid_name, "schedule"),
        "spec": lambda spec: parse_spec(spec) and spec,
        "queue": partial(valid_name, "queue"),
        "payload_text": payload_of,
        **{name: option_rule(name) for name in Schedule.OPTIONS},
    }

    class Meta:
        model = Schedule
        fields = ["name", "spec", "queue", *Schedule.OPTIONS, "enabled"]
        help_texts = {
            "spec": "For example @every 90s. The units are s, m, h and d.",
            **dict.fromkeys(Schedule.OPTIONS, f"In seconds. {INHERITED}"),
            "priority": f"Larger first. {INHERITED}",
            "max_attempts": INHERITED,
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk:
            self.initial["payload_text"] = payload_text(self.instance)

    def clean(self) -> None:
        super().clean()
        for field, rule in self.RULES.items():
            if self.cleaned_data.get(field) is not None:
                self._keep(field, rule, self.cleaned_data[field])
        if self.instance.pk:  # not a field then, but another hand may have spoilt it
            self._keep(None, self.RULES["name"], self.instance.name)

    def _keep(self, field: str | None, rule: Callable[[Any], object], value: object) -> None:
        try:
            self.cleaned_data[field] = rule(value)
        except AlkstoreError as exc:
            self.add_error(field, str(exc))


@admin.register(Schedule)
class ScheduleAdmin(WhereTheRowsAre):
    form = ScheduleForm
    instants = [*map(instant, ["next_fire_at", "last_fired_at", "created_at", "updated_at"])]
    list_display = ["name", "spec", "queue", "enabled", *instants[:2]]
    list_filter = ["enabled"]
    ordering = ["name"]
    search_fields = ["name", "queue"]

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return super().get_queryset(request).defer("payload")

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> list[tuple]:
        asked = (None, {"fields": ["name", "spec", "queue", "payload_text", "enabled"]})
        options = ("Options of its jobs", {"fields": Schedule.OPTIONS})
        return [asked, options, ("Times", {"fields": self.instants})] if obj else [asked, options]

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> list:
        return ["name", *self.instants] if obj else []

    @admin.display(description="payload")
    def payload_text(self, row: Schedule) -> str:
        """For those who may only look; for others it is a field of the form."""
        return preformatted(payload_text(row))

    def save_model(
        self, request: HttpRequest, obj: Schedule, form: ScheduleForm, change: bool
    ) -> None:
        options = {name: getattr(obj, name) for name in Schedule.OPTIONS}
        given = {name: value for name, value in options.items() if value is not None}
        with transaction.atomic(sql.write_alias()):
            payload = form.cleaned_data["payload_text"]
            row = schedule(obj.name, obj.spec, obj.queue, payload, **given)
            switch(row, obj.enabled)
        obj.pk = row.pk


def switch(row: Schedule, enabled: bool) -> None:
    """Enable or disable. Boundaries that passed in between are not fired afterwards."""
    if row.enabled == enabled:
        return
    engine = sql.engine()
    changed = {"enabled": enabled, "updated_at": engine.clock()}
    if enabled and row.next_fire_at is not None:
        boundary = aware(row.next_fire_at)
        changed["next_fire_at"] = parse_spec(row.spec).due(boundary, changed["updated_at"], 0).next
    Schedule.objects.using(engine.alias).filter(pk=row.pk).update(**changed)
