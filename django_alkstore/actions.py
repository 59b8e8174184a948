"""What people can do from the admin, to rows selected in a list or to the one whose page is open.

Each action is POST, needs a permission of its own, and says of each row what came of it. It works on
the rows that were selected, whatever they have become since: a job that a worker took in between is
left alone, and the message says so. All of a list is at most what can be paged to. What was done is
in the history of each row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from . import operations, schedules
from .exceptions import AlkstoreError
from .models import Job, Lock, Schedule, State
from .options import INT_MAX
from .status import COUNTED_UP_TO

ID_DIGITS = 19  # an id has fewer
NAMED = 50  # rows that one message names


class PriorityForm(forms.Form):
    priority = forms.IntegerField(
        min_value=-INT_MAX - 1, max_value=INT_MAX, help_text="Jobs with a larger one go first."
    )


def may(verb: str) -> Callable[[Any, HttpRequest], bool]:
    """The method by which Django asks whether a user has the permission of an action."""

    def has_permission(self: admin.ModelAdmin, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{verb}_{self.opts.model_name}")

    return has_permission


class Acts(admin.ModelAdmin):
    """The actions as buttons on a row's page too. They come back to it, by ``_page``."""

    buttons: list[str] = []

    def suits(self, row: Any, action: str) -> bool:
        """Whether the action could do anything to such a row."""
        return True

    def links(self, row: Any) -> list[tuple[str, str]]:
        """Where else to look: addresses and their words."""
        return []

    def render_change_form(
        self, request: HttpRequest, context: dict, *args: Any, obj: Any = None, **kwargs: Any
    ) -> HttpResponse:
        allowed = self.get_actions(request) if obj else {}
        context["buttons"] = [
            (name, getattr(self, name).short_description)
            for name in self.buttons
            if name in allowed and self.suits(obj, name)
        ]
        context["links"] = self.links(obj) if obj else []
        context["list_url"] = self._url("changelist")
        return super().render_change_form(request, context, *args, obj=obj, **kwargs)

    def _url(self, page: str, *args: Any) -> str:
        site, model = self.admin_site.name, self.opts.model_name
        return reverse(f"{site}:django_alkstore_{model}_{page}", args=args)

    def response_action(
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Without what was sent in the place of an id: Django would fail on it."""
        ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
        request.POST = request.POST.copy()
        ids = [id for id in ticked if id.isdecimal() and len(id) < ID_DIGITS]
        request.POST.setlist(ACTION_CHECKBOX_NAME, ids)
        return super().response_action(request, *args, **kwargs)

    def _selected(self, request: HttpRequest, queryset: QuerySet) -> list[int]:
        """The ids that were ticked. By now the list may hold fewer: its filter is by the state."""
        if request.POST.get("select_across") == "1":
            return list(queryset.values_list("pk", flat=True)[:COUNTED_UP_TO])
        return [int(id) for id in request.POST.getlist(ACTION_CHECKBOX_NAME)]

    def _rows(self, request: HttpRequest, queryset: QuerySet) -> list[Any]:
        """Those of the selected rows that still are there; of the others it says that they went."""
        ids = self._selected(request, queryset)
        rows = list(self.get_queryset(request).filter(pk__in=ids))
        for id in sorted({*ids} - {row.pk for row in rows}):
            gone = f"The {self.opts.verbose_name} with the id {id} is gone."
            self.message_user(request, gone, messages.WARNING)
        return rows

    def _back(self, request: HttpRequest) -> HttpResponse | None:
        """To the page that the button was on; None for the list."""
        page = request.POST.get("_page", "")
        return HttpResponseRedirect(self._url("change", page)) if page.isdecimal() else None

    def _ask(
        self, request: HttpRequest, action: str, title: str, rows: Iterable[str], **context: Any
    ) -> HttpResponse:
        """The page between: it sends the same selection once more, with an answer."""
        page = request.POST.get("_page", "")
        context |= {
            **self.admin_site.each_context(request),
            "title": title, "opts": self.opts, "action": action, "rows": list(rows),
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "select_across": request.POST.get("select_across", "0"),
            "page": page if page.isdecimal() else "",
            "list_url": self._url("changelist"),
            "back_url": back.url if (back := self._back(request)) else request.get_full_path(),
        }  # fmt: skip
        return TemplateResponse(request, "admin/django_alkstore/confirm.html", context)

    def _log(self, request: HttpRequest, rows: Iterable[tuple[int, str]], done: str) -> None:
        kind = get_content_type_for_model(self.model).pk
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk, content_type_id=kind, object_id=str(id),
                object_repr=name[:200], action_flag=CHANGE, change_message=done,
            )
            for id, name in rows
        )  # fmt: skip


def listed(names: Iterable[object]) -> str:
    """As many as a message can hold."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - NAMED:,} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def jobs(count: int) -> str:
    return f"{count:,} job" + ("" if count == 1 else "s")


# -- jobs -----------------------------------------------------------------------------------------


class JobActions(Acts):
    has_requeue_permission = may("requeue")
    has_run_permission = may("run")
    has_cancel_permission = may("cancel")
    has_prioritise_permission = may("prioritise")
    buttons = ["requeue", "run_now", "cancel", "set_priority"]
    actions = buttons
    states = {
        "requeue": operations.REQUEUE.states,
        "run_now": operations.RUN_NOW.states,
        "cancel": operations.CANCEL.states,
        "set_priority": (State.READY, State.SCHEDULED),
    }

    def suits(self, row: Job, action: str) -> bool:
        return row.state in self.states[action]

    @admin.action(description="Requeue dead", permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        return self._change(request, queryset, operations.REQUEUE)

    @admin.action(description="Run now", permissions=["run"])
    def run_now(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        return self._change(request, queryset, operations.RUN_NOW)

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        if "confirmed" in request.POST:
            return self._change(request, queryset, operations.CANCEL)
        note = (
            "Cancelled jobs are dead, and a requeue brings them back. Running ones are left alone."
        )
        return self._ask_about(request, queryset, "cancel", "Cancel {}?", note=note)

    @admin.action(description="Change priority", permissions=["prioritise"])
    def set_priority(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        form = PriorityForm(request.POST if "confirmed" in request.POST else None)
        if form.is_valid():
            verb = operations.priority_verb(form.cleaned_data["priority"])
            return self._change(request, queryset, verb)
        title = "Change the priority of {}"
        return self._ask_about(request, queryset, "set_priority", title, form=form)

    def _ask_about(
        self, request: HttpRequest, queryset: QuerySet, action: str, title: str, **context: Any
    ) -> HttpResponse:
        ids = self._selected(request, queryset)
        rows = [str(job) for job in self.get_queryset(request).filter(pk__in=ids[:NAMED])]
        more = [f"and {len(ids) - NAMED:,} more"] if len(ids) > NAMED else []
        return self._ask(request, action, title.format(jobs(len(ids))), rows + more, **context)

    def _change(
        self, request: HttpRequest, queryset: QuerySet, verb: operations.Verb
    ) -> HttpResponse | None:
        changed = operations.change(verb, self._selected(request, queryset))
        self._log(request, [(id, f"job {id}") for id in changed.ids], verb.done.capitalize() + ".")
        if changed.ids:
            done = f"{jobs(len(changed.ids))} {verb.done}: {listed(changed.ids)}."
            self.message_user(request, done, messages.SUCCESS)
        for state, ids in by_state(changed.left).items():
            why = "locked by somebody else" if state in verb.states else state
            left = f"{jobs(len(ids))} left alone, {why} by now: {listed(ids)}."
            self.message_user(request, left, messages.WARNING)
        return self._back(request)


def by_state(left: dict[int, str]) -> dict[str, list[int]]:
    states = defaultdict(list)
    for id, state in left.items():
        states[state].append(id)
    return states


# -- schedules ------------------------------------------------------------------------------------


class ScheduleActions(Acts):
    has_pause_permission = may("pause")
    has_fire_permission = may("fire")
    buttons = ["pause", "resume", "fire_now"]
    actions = buttons

    def suits(self, row: Schedule, action: str) -> bool:
        return action == "fire_now" or row.enabled == (action == "pause")

    @admin.action(description="Pause", permissions=["pause"])
    def pause(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        def pause(name: str) -> str | None:
            return "paused" if schedules.pause_schedule(name) else None

        return self._each(request, queryset, pause, "is paused already, or gone")

    @admin.action(description="Resume", permissions=["pause"])
    def resume(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        def resume(name: str) -> str | None:
            return "resumed" if schedules.resume_schedule(name) else None

        return self._each(request, queryset, resume, "is not paused, or gone")

    @admin.action(description="Fire now", permissions=["fire"])
    def fire_now(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        def fire(name: str) -> str | None:
            job_id = schedules.fire_now(name, by=request.user.get_username())
            return None if job_id is None else f"fired, as job {job_id}"

        return self._each(request, queryset, fire, "is gone")

    def _each(
        self, request: HttpRequest, queryset: QuerySet, verb: Any, otherwise: str
    ) -> HttpResponse | None:
        for row in self._rows(request, queryset):
            try:
                done = verb(row.name)
            except AlkstoreError as exc:
                self.message_user(
                    request, f"Schedule {row.name} was left alone: {exc}", messages.ERROR
                )
                continue
            if done is None:
                left = f"Schedule {row.name} was left alone: it {otherwise}."
                self.message_user(request, left, messages.WARNING)
            else:
                self._log(request, [(row.pk, row.name)], done.capitalize() + ".")
                self.message_user(request, f"Schedule {row.name} was {done}.", messages.SUCCESS)
        return self._back(request)


# -- locks ----------------------------------------------------------------------------------------


class LockActions(Acts):
    """Releasing asks first, and then frees the lock only from the hold that was shown."""

    has_release_permission = may("release")
    buttons = ["release"]
    actions = buttons

    def suits(self, row: Lock, action: str) -> bool:
        return bool(row.owner)

    @admin.action(description="Release", permissions=["release"])
    def release(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        locks = self._rows(request, queryset)
        if "confirmed" not in request.POST:
            note = "Who holds one is not told, and may go on working."
            rows = [f"{lock.name}, held by {lock.owner or 'nobody'}" for lock in locks]
            seen = [f"{lock.pk}:{lock.token}" for lock in locks]
            return self._ask(request, "release", "Release locks?", rows, note=note, seen=seen)
        for lock in locks:
            self._release(request, lock)
        return self._back(request)

    def _release(self, request: HttpRequest, lock: Lock) -> None:
        was_shown = f"{lock.pk}:{lock.token}" in request.POST.getlist("seen")
        if not lock.owner:
            self.message_user(request, f"Lock {lock.name} is free already.", messages.WARNING)
        elif was_shown and operations.release_lock(lock.name, lock.owner, lock.token):
            self._log(request, [(lock.pk, lock.name)], "Released.")
            self.message_user(request, f"Lock {lock.name} was released.", messages.SUCCESS)
        else:
            left = f"Lock {lock.name} was left alone: it is in other hands by now."
            self.message_user(request, left, messages.WARNING)
