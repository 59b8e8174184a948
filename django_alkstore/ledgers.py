"""What a schedule did and will do, as people read it: its last fires and its next boundaries.

Reads alone, and few rows of each. What became of a job is told from its row; one whose row is gone
was done, unless somebody has deleted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from django.apps import apps

from . import sql
from .options import YEARS
from .schedules import next_boundaries
from .status import shown_span

FIRES_SHOWN = 20
GONE = "done, its row is gone"


@dataclass(frozen=True)
class Upcoming:
    """A boundary on the clocks of its schedule and in UTC. ``change``: what those clocks have done
    since the one before it, in words."""

    local: datetime
    utc: datetime
    change: str = ""

    @property
    def shown(self) -> tuple[str, str]:
        return self.local.isoformat(" ", "seconds"), self.utc.isoformat(" ", "seconds")


@dataclass(frozen=True)
class Told:
    """A row of the ledger. ``outcome``: what became of the job, None if the boundary has none."""

    fire: Any
    late_seconds: float | None
    outcome: str | None


def upcoming(name: str, n: int = 10, using: str | None = None) -> list[Upcoming]:
    """The next boundaries of a schedule, with the clock changes between them marked; none of those
    that stand for never."""
    marked = _marked(next_boundaries(name, n, using))
    return [one for one in marked if one.local.year in YEARS and one.utc.year in YEARS]


def _marked(boundaries: Iterable[datetime]) -> Iterator[Upcoming]:
    before = None
    for local in boundaries:
        yield Upcoming(local, local.astimezone(timezone.utc), _change(before, local))
        before = local


def _change(before: datetime | None, local: datetime) -> str:
    if before is None or before.utcoffset() == local.utcoffset():
        return ""
    moved = (local.utcoffset() - before.utcoffset()).total_seconds()
    return f"clocks {'forward' if moved > 0 else 'back'} {shown_span(abs(moved))}"


def last_fires(name: str, n: int = FIRES_SHOWN, using: str | None = None) -> list[Told]:
    """The last ``n`` rows of a schedule's ledger, the newest first."""
    alias = sql.write_alias(using)
    fires = apps.get_model("django_alkstore", "Fire").objects.using(alias).filter(schedule=name)
    # Each along the index; in the order of their ids they would be looked for among all fires.
    at_boundaries = fires.filter(boundary__isnull=False).order_by("-boundary")[:n]
    by_hand = fires.filter(boundary__isnull=True).order_by("-id")[:n]
    newest = sorted([*at_boundaries, *by_hand], key=lambda fire: fire.id, reverse=True)[:n]
    jobs = apps.get_model("django_alkstore", "Job").objects.using(alias)
    states = dict(
        jobs.filter(pk__in={fire.job_id for fire in newest} - {None}).values_list("pk", "state")
    )
    return [Told(fire, _lateness(fire), _outcome(fire, states)) for fire in newest]


def _lateness(fire: Any) -> float | None:
    if fire.boundary is None:
        return None
    return max(0.0, (fire.fired_at - fire.boundary).total_seconds())


def _outcome(fire: Any, states: dict[int, str]) -> str | None:
    return None if fire.job_id is None else states.get(fire.job_id, GONE)
