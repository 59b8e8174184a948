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
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import AdminTextareaWidget
from django.db import models, transaction
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from . import ledgers, payloads, sql
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
from .timetables import checked_time, plan
from .words import (
    NEVER,
    payload_text,
    preformatted,
    shown_age,
    shown_due,
    shown_instant,
    shown_span,
    shown_until,
    story,
)  # fmt: skip

INHERITED = "Empty: what the queue is set to."
TIMES_HELP = {
    "timezone": "An IANA name, such as Europe/London, for @cron. Empty: the project's TIME_ZONE.",
    "catch_up": "Boundaries that were missed: all (up to 64), the latest alone, or none.",
    "overlap": "While the last job is alive: allow another, skip the boundary, or queue it.",
    "jitter": "In seconds: each job runs up to so much later, spread evenly.",
    "starts_at": "No boundary before this; intervals are counted from it.",
    "ends_at": "No boundary after this.",
    "max_fires": "Ends after so many boundaries. Empty: never.",
}


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

    leads_to = {"schedule_link": "view_schedule", "fire_link": "view_fire"}

    def get_fieldsets(self, request: HttpRequest, obj: Job | None = None) -> list[tuple]:
        """Without what tells of rows that the user may not look at."""
        user, app = request.user, self.opts.app_label
        hidden = [name for name, of in self.leads_to.items() if not user.has_perm(f"{app}.{of}")]
        return [
            (title, {"fields": [name for name in options["fields"] if name not in hidden]})
            for title, options in self.fieldsets
        ]

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
        return shown_age(job.created_at)

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
                             "skipped", "why", "leader"]  # fmt: skip
    search_fields = ["schedule__exact"]
    search_help_text = "The exact name of a schedule."

    @admin.display
    def job(self, fire: Fire) -> str:
        if fire.job_id is None:
            return "dropped"
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


def shown_fire(told: ledgers.Told) -> dict[str, Any]:
    """A row of the ledger as its page shows it."""
    fire, late = told.fire, told.late_seconds
    has_job = fire.job_id is not None
    return {
        "boundary": "by hand"
        if fire.boundary is None
        else link(fire, shown_instant(fire.boundary)),
        "late": NEVER if late is None or not has_job else shown_span(late),
        "job": link(Job(pk=fire.job_id), f"job {fire.job_id}") if has_job else NEVER,
        "outcome": told.outcome or "dropped",
        "by": fire.leader,
        "dropped": f"{fire.skipped:,}: {fire.why}" if fire.skipped else NEVER,
    }


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


def time_rule(name: str) -> Callable[[object], object]:
    return lambda value: checked_time(name, value) if value != "" else ""


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
        **{name: time_rule(name) for name in Schedule.TIMES},
    }

    class Meta:
        model = Schedule
        fields = ["name", "spec", "queue", *Schedule.TIMES, *Schedule.OPTIONS, "enabled"]
        help_texts = {
            "spec": "For example @every 90s (units: s, m, h, d) or @cron 30 2 * * mon-fri.",
            **dict.fromkeys(Schedule.OPTIONS, f"In seconds. {INHERITED}"),
            "priority": f"Larger first. {INHERITED}",
            "max_attempts": INHERITED,
            **TIMES_HELP,
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in self.fields.keys() & {*Schedule.TIMES}:
            self.fields[name].required = False
        if self.instance.pk:
            self.initial["payload_text"] = payload_text(self.instance)

    def clean(self) -> None:
        super().clean()
        for field, rule in self.RULES.items():
            if self.cleaned_data.get(field) is not None:
                self._keep(field, rule, self.cleaned_data[field])
        if self.instance.pk:  # not a field then, but another hand may have spoilt it
            self._keep(None, self.RULES["name"], self.instance.name)
        if not self.errors:
            self._keep(None, lambda given: plan(**given), self.asked())

    def asked(self) -> dict[str, Any]:
        """What ``schedule`` is to be told. A time that was not edited is as it was stored: the page
        shows no microseconds."""
        data, names = self.cleaned_data, [*Schedule.TIMES, *Schedule.OPTIONS]
        as_stored = {name for name in self.initial if name not in self.changed_data}
        given = {name: self.initial[name] if name in as_stored else data[name] for name in names}
        options = {name: value for name, value in given.items() if value not in (None, "")}
        payload = data["payload_text"]
        return {"spec": data["spec"], "queue": data["queue"], "payload": payload, **options}

    def _keep(self, field: str | None, rule: Callable[[Any], object], value: object) -> None:
        try:
            self.cleaned_data[field] = rule(value)
        except AlkstoreError as exc:
            self.add_error(field, str(exc))


@admin.register(Schedule)
class ScheduleAdmin(WhereTheRowsAre, ScheduleActions):
    form = ScheduleForm
    instants = [*map(instant, ["next_fire_at", "last_fired_at", "ended_at", "created_at",
                               "updated_at"])]  # fmt: skip
    list_display = ["name", "spec", "queue", "enabled", "declared", *instants[:2]]
    list_filter = ["enabled", "declared"]
    ordering = ["name"]
    search_fields = ["name", "queue"]

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return super().get_queryset(request).defer("payload")

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> list[tuple]:
        asked = [
            (None, {"fields": ["name", "spec", "queue", "payload_text", "enabled"]}),
            ("When it fires", {"fields": Schedule.TIMES}),
            ("Options of its jobs", {"fields": Schedule.OPTIONS}),
        ]
        if obj is None:
            return asked
        sees_ledger = request.user.has_perms(
            [f"django_alkstore.view_{row}" for row in ("fire", "job")]
        )
        told = (None, {"fields": ["coming", "ledger"] if sees_ledger else ["coming"]})
        return [told, *asked, ("So far", {"fields": ["declared", "fires", *self.instants]})]

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """A declared one is changed where it is declared."""
        return super().has_change_permission(request, obj) and not (obj and obj.declared)

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not (obj and obj.declared)

    def links(self, row: Schedule) -> list[tuple[str, str]]:
        jobs, fires = map(list_of, (Job, Fire))
        return [
            (f"{jobs}?{urlencode({'schedule': row.name})}", "Jobs"),
            (f"{fires}?{urlencode({'q': row.name})}", "Fires"),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> list:
        return ["name", "coming", "ledger", "declared", "fires", *self.instants] if obj else []

    @admin.display(description="next boundaries")
    def coming(self, row: Schedule) -> SafeString:
        """In its own zone and in UTC; why not, where the row has been spoilt."""
        try:
            boundaries = ledgers.upcoming(row.name, using=row._state.db)
        except (AlkstoreError, ValueError) as exc:
            return preformatted(str(exc))
        zone = row.timezone or settings.TIME_ZONE
        context = {"row": row, "boundaries": boundaries, "zone": zone}
        return render_to_string("admin/django_alkstore/coming.html", context)

    @admin.display(description="last fires")
    def ledger(self, row: Schedule) -> SafeString:
        rows = [shown_fire(told) for told in ledgers.last_fires(row.name, using=row._state.db)]
        return render_to_string("admin/django_alkstore/ledger.html", {"rows": rows})

    @admin.display(description="payload")
    def payload_text(self, row: Schedule) -> str:
        """For those who may only look; for others it is a field of the form."""
        return preformatted(payload_text(row))

    def save_model(
        self, request: HttpRequest, obj: Schedule, form: ScheduleForm, change: bool
    ) -> None:
        with transaction.atomic(sql.write_alias()):
            row = schedule(obj.name, **form.asked())
            switch = resume_schedule if obj.enabled else pause_schedule
            switch(obj.name)
        obj.pk = row.pk
