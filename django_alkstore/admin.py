"""The admin: jobs, fires and locks to look at and to act on, schedules to add and edit.

Opening a page sends SELECTs and takes no lock, however broken the rows are (see ``words``). Lists
cost the same however long the table is (see ``lists``); what people do is in ``actions``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db import models, transaction
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from . import payloads, sql
from .actions import JobActions, LockActions, ScheduleActions
from .exceptions import AlkstoreError, InvalidPayload, expected
from .lists import (
    AgeFilter,
    BoundedList,
    BoundedPaginator,
    QueueFilter,
    ScheduleFilter,
    StateFilter,
    found,
)  # fmt: skip
from .models import Fire, Job, Lock, Row, Schedule
from .names import SCHEDULER_LOCK, shown_name, valid_name
from .options import checked
from .schedules import pause_schedule, resume_schedule, schedule
from .specs import parse_spec
from .words import (
    NEVER,
    payload_text,
    preformatted,
    seconds_until,
    shown_due,
    shown_instant,
    shown_span,
    shown_until,
    story,
)  # fmt: skip

INHERITED = "Empty: what the queue is set to."


def instant(name: str) -> Callable[[Row], str]:
    """A column for an instant; Django's own would stumble over those that no zone can show."""

    @admin.display(description=name.replace("_", " "))
    def column(row: Row) -> str:
        return shown_instant(getattr(row, name))

    column.__name__ = name
    return column


def link(row: Row | None, text: str) -> str:
    """To the page of a row; the text alone where there is none."""
    if row is None:
        return text
    address = reverse(f"admin:django_alkstore_{row._meta.model_name}_change", args=[row.pk])
    return format_html('<a href="{}">{}</a>', address, text)


def list_of(model: type[Row]) -> str:
    return reverse(f"admin:django_alkstore_{model._meta.model_name}_changelist")


# -- what can only be looked at -------------------------------------------------------------------


class WhereTheRowsAre(admin.ModelAdmin):
    """Reads the database that queues and schedules write to."""

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they count the whole table

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return super().get_queryset(request).using(sql.write_alias())

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BoundedList

    class Media:
        css = {"all": ["django_alkstore/admin.css"]}


class ReadOnly(WhereTheRowsAre):
    ordering = ["-id"]
    sortable_by = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnly, JobActions):
    list_display = ["id", "state_word", "queue_name", "priority", "attempts_made", "due", "age"]
    list_filter = [StateFilter, QueueFilter, ScheduleFilter, AgeFilter]
    search_fields = ["id", "queue"]  # shows the box; get_search_results says what it does
    search_help_text = "A job's id, its idempotency key, or the exact name of a queue or an outbox."
    fieldsets = [
        (None, {"fields": ["history", "queue_name", "state_word", "due", "attempts_made", "priority",
                           "payload_json"]}),
        ("Last failure", {"fields": ["error", "traceback"]}),
        ("Times", {"fields": [*map(instant, ["created_at", "run_at", "due_at", "expires_at",
                                             "finished_at"])]}),
        ("Claim", {"fields": ["worker_id", "visibility_timeout", "backoff"]}),
        ("Schedule", {"fields": ["schedule_link", "fire_link",
                                 instant("scheduled_for")]}),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return super().get_queryset(request).defer("payload", "last_error", "last_traceback")

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet, search_term: str
    ) -> tuple[models.QuerySet, bool]:
        return found(queryset, search_term), False

    @admin.display(description="state")
    def state_word(self, job: Job) -> str:
        return job.state  # a word that is no state is shown too

    @admin.display
    def history(self, job: Job) -> SafeString:
        told = format_html_join("", "<li>{}</li>", ((sentence,) for sentence in story(job)))
        return format_html('<ol class="alkstore-story">{}</ol>', told)

    @admin.display(description="schedule")
    def schedule_link(self, job: Job) -> str:
        rows = Schedule.objects.using(job._state.db).filter(name=job.schedule or "")
        return link(rows.only("id", "name").first(), job.schedule or NEVER)

    @admin.display(description="fire")
    def fire_link(self, job: Job) -> str:
        rows = Fire.objects.using(job._state.db).filter(schedule=job.schedule or "")
        fire = rows.filter(boundary=job.scheduled_for, job_id=job.pk).first()
        return link(fire, f"at {shown_instant(fire.fired_at)}" if fire else NEVER)

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
    list_display = fields = ["schedule", instant("boundary"), instant("fired_at"), "job",
                             "skipped", "leader"]  # fmt: skip
    search_fields = ["schedule__exact"]
    search_help_text = "The exact name of a schedule."

    @admin.display
    def job(self, fire: Fire) -> str:
        return link(Job(pk=fire.job_id), str(fire.job_id))  # which may have been pruned


@admin.register(Lock)
class LockAdmin(ReadOnly, LockActions):
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
            "spec": "For example @every 90s (units: s, m, h, d) or @cron 30 2 * * mon-fri.",
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
class ScheduleAdmin(WhereTheRowsAre, ScheduleActions):
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

    def links(self, row: Schedule) -> list[tuple[str, str]]:
        jobs, fires = map(list_of, (Job, Fire))
        return [
            (f"{jobs}?{urlencode({'schedule': row.name})}", "Jobs"),
            (f"{fires}?{urlencode({'q': row.name})}", "Fires"),
        ]

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
            switch = resume_schedule if obj.enabled else pause_schedule
            switch(obj.name)
        obj.pk = row.pk
