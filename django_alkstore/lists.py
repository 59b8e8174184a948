"""Long lists in the admin at a bounded cost: the newest ``COUNTED_UP_TO`` rows can be paged to.

No table is counted. A list looks up the ids of its first rows once, along an index, and its number
of rows is the number of those: what lies beyond is reached by a filter or a search. A filter by
schedule goes by the ledger, whose index finds the jobs of the last ``FIRES`` fires.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from . import reads, sql
from .models import Fire, State
from .names import backing_queue, shown_name
from .status import COUNTED_UP_TO

FIRES = 1_000
AGES = {
    "newer-hour": ("less than an hour", timedelta(hours=1)),
    "newer-day": ("less than a day", timedelta(days=1)),
    "older-hour": ("more than an hour", timedelta(hours=1)),
    "older-day": ("more than a day", timedelta(days=1)),
    "older-week": ("more than a week", timedelta(days=7)),
}


class BoundedPaginator(Paginator):
    """Pages through the first ``COUNTED_UP_TO`` rows; looks for them once."""

    @cached_property
    def ids(self) -> list[int]:
        return list(self.object_list.values_list("pk", flat=True)[:COUNTED_UP_TO])

    @cached_property
    def count(self) -> int:
        return len(self.ids)

    def page(self, number: int | str) -> Page:
        number = self.validate_number(number)
        bottom = (number - 1) * self.per_page
        ids = self.ids[bottom : bottom + self.per_page]
        return self._get_page(self.object_list.filter(pk__in=ids), number, self)


class BoundedList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        """Likewise where one page holds all: Django would look for its rows a second time."""
        super().get_results(request)
        self.stops_at = f"{COUNTED_UP_TO:,}" if self.result_count >= COUNTED_UP_TO else None
        if not self.multi_page:
            self.result_list = self.paginator.page(1).object_list


# -- filters --------------------------------------------------------------------------------------


class QueueFilter(admin.SimpleListFilter):
    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*reads.queue_names(sql.engine()), *filter(None, [self.value()])}
        return [(name, shown_name(name)) for name in sorted(names, key=shown_name)]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(queue=self.value()) if self.value() else queryset


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return State.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(state=self.value()) if self.value() else queryset


class AgeFilter(admin.SimpleListFilter):
    title = "age"
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(key, words) for key, (words, _) in AGES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        if self.value() not in AGES:
            return queryset
        instant = sql.engine().clock() - AGES[self.value()][1]
        is_newer = self.value().startswith("newer")
        return queryset.filter(**{"created_at__gt" if is_newer else "created_at__lte": instant})


class ScheduleFilter(admin.SimpleListFilter):
    """Shown while it is in use: the links of a schedule's page set it, there may be thousands."""

    title = "schedule"
    parameter_name = "schedule"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in filter(None, [self.used_parameters.get("schedule")])]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        if not self.value():
            return queryset
        ids = fired_jobs(self.value(), queryset.db)
        return queryset.filter(schedule=self.value(), pk__in=ids)


def fired_jobs(schedule: str, using: str) -> list[int]:
    """The jobs of a schedule's latest fires, those by hand among them."""
    fires = Fire.objects.using(using).filter(schedule=schedule)
    on_time = fires.filter(boundary__isnull=False).order_by("-boundary")
    by_hand = fires.filter(boundary__isnull=True).order_by()
    return [
        id for rows in (on_time, by_hand) for id in rows.values_list("job_id", flat=True)[:FIRES]
    ]


# -- search ---------------------------------------------------------------------------------------


def found(queryset: QuerySet, text: str) -> QuerySet:
    """Jobs by id, by the exact name of a queue or outbox, or by idempotency key: ``queue:id``."""
    term = text.strip()
    if not term:
        return queryset
    if _is_id(term):
        return queryset.filter(pk=term)
    queue, _, id = term.rpartition(":")
    by_key = Q(queue__in=_queues(queue), pk=id) if _is_id(id) else Q()
    return queryset.filter(Q(queue__in=_queues(term)) | by_key)


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) < 19


def _queues(name: str) -> list[str]:
    return [name, backing_queue(name.removeprefix("outbox "))]
