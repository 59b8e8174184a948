"""The first page of the app in the admin: what is wrong, and then what there is.

It shows one ``status.snapshot``, so it only reads, at a bounded cost. What a user may not look at is
taken out of it first, so that no warning can tell of it either. The charts are SVG inside the page,
without script or style, so that a strict Content-Security-Policy lets them be; each says in words
what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from .status import (
    OLD_SECONDS,
    LeaderStatus,
    QueueStatus,
    ScheduleStatus,
    Snapshot,
    shown_span,
    snapshot,
)
from .words import NEVER, shown_instant

WIDTH, HEIGHT = 120, 26  # of a chart, in units of the SVG
TALLEST = 20  # a bar of what was done, or failed, or of both
LEAST = 3  # of what failed: one failure among a million is the one to see
COUNTS = ("ready", "dead", "running", "lapsed", "scheduled")


@dataclass(frozen=True)
class Chart:
    """Bars, one a step: what was done, and on top of it what failed. ``text`` says it in words."""

    text: str
    short: str
    done: str  # the d of a path
    failed: str
    width: int = WIDTH
    height: int = HEIGHT


def chart(span: str, steps: Sequence[tuple[int, int]]) -> Chart:
    done, failed = (sum(figures) for figures in zip(*steps, strict=True)) if steps else (0, 0)
    most = max((sum(step) for step in steps), default=0)
    step_width = WIDTH // max(1, len(steps))
    low, high = [], []
    for n, (of_done, of_failed) in enumerate(steps):
        top = _height(of_done, most, 1)
        low.append(_bar(n * step_width, 0, top, step_width))
        high.append(_bar(n * step_width, top, _height(of_failed, most, LEAST), step_width))
    short = f"{done:,} done, {failed:,} failed"
    return Chart(f"{short} in the last {span}", short, "".join(low), "".join(high))


def _height(count: int, most: int, least: int) -> int:
    return max(least, count * TALLEST // most) if count > 0 else 0


def _bar(x: int, bottom: int, height: int, step_width: int) -> str:
    if height == 0:
        return ""
    width = step_width - 1 if step_width > 2 else step_width
    return f"M{x} {HEIGHT - bottom - height}h{width}v{height}h-{width}z"


# -- rows of the tables ---------------------------------------------------------------------------


def context(user: Any) -> dict[str, Any]:
    """What the template needs of what the user may look at: nothing, maybe."""
    models = ("job", "schedule", "lock")
    may = {name: user.has_perm(f"django_alkstore.view_{name}") for name in models}
    if not (may["job"] or may["schedule"]):
        return {}
    seen = _permitted(snapshot(), may)
    schedules = reverse("admin:django_alkstore_schedule_changelist")
    return {
        "may": may,
        "warnings": seen.warnings,
        "all_is_well": _all_is_well(may),
        "at": shown_instant(seen.at),
        "queues": [_queue(status) for status in seen.queues],
        "schedules": [_schedule(status, schedules) for status in seen.schedules],
        "leader": _leader(seen.leader, may),
    }


def _permitted(seen: Snapshot, may: Mapping[str, bool]) -> Snapshot:
    if not may["job"]:
        seen = replace(seen, queues=[], trouble=[])
    return seen if may["schedule"] else replace(seen, schedules=[])


def _all_is_well(may: Mapping[str, bool]) -> str:
    parts = ["no job waits for too long", "none died in the last hour"] if may["job"] else []
    parts += ["no schedule is late"] if may["schedule"] else []
    return f"Nothing: {', '.join(parts)}."


def _queue(status: QueueStatus) -> dict[str, Any]:
    jobs = reverse("admin:django_alkstore_job_changelist")

    def address(**query: str) -> str:
        return f"{jobs}?{urlencode({'queue': status.queue, **query})}"

    states = {"lapsed": "running"}
    counts = {name: (status.shown(name), address(state=states.get(name, name))) for name in COUNTS}
    return {
        "status": status,
        "url": address(),
        **counts,
        "oldest_ready": _span(status.oldest_ready_seconds),
        "is_old": (status.oldest_ready_seconds or 0) > OLD_SECONDS,
        "next_due": _next_due(status.next_due_seconds),
        "is_overdue": (status.overdue_seconds or 0) > OLD_SECONDS,
        "charts": [chart("hour", status.per_minute), chart("day", status.per_hour)],
    }


def _schedule(status: ScheduleStatus, schedules: str) -> dict[str, Any]:
    return {
        "status": status,
        "url": f"{schedules}?{urlencode({'q': status.name})}",
        "next": _next(status),
        "last": shown_instant(status.last_fired_at),
        "late": shown_span(status.late_seconds) if status.late_seconds > 0 else NEVER,
        "fired_late": _span(status.fired_late_seconds),
    }


def _next(status: ScheduleStatus) -> str:
    if not status.enabled:
        return "paused"
    if status.ended:
        return "has ended"
    return "waits for its job" if status.waits else shown_instant(status.next_fire_at)


def _leader(leader: LeaderStatus | None, may: Mapping[str, bool]) -> str:
    if leader is None:
        return "No scheduler has ever led, or the last one has left."
    who = leader.owner if may["lock"] else "A scheduler"
    if leader.lapsed:
        return f"{who} led; its lease lapsed {shown_span(-leader.expires_in_seconds)} ago."
    age, left = shown_span(leader.age_seconds), shown_span(leader.expires_in_seconds)
    return f"{who} leads, for {age}; its lease is good for another {left}."


def _next_due(seconds: float | None) -> str:
    return "now" if seconds == 0 else _span(seconds)


def _span(seconds: float | None) -> str:
    return NEVER if seconds is None else shown_span(seconds)
