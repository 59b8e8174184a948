"""What machines ask over HTTP: whether all is well, and figures in the Prometheus text format.

``health`` is open to everybody, tells names of nothing, and sends three short statements at most.
``metrics`` is for those who have ALKSTORE["METRICS_TOKEN"] (``Authorization: Bearer ...``), and for
active staff. Both only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import Error, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from . import conf, reads, sql
from .names import outbox_of
from .status import Snapshot, is_well, snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def outside_transactions(view: Callable) -> Callable:
    """Whatever ATOMIC_REQUESTS says: a transaction could fail before the view can say so, and on
    SQLite it would wait for the one write lock."""
    for alias in connections:
        view = transaction.non_atomic_requests(alias)(view)
    return view


@outside_transactions
@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """200 "ok", or 503 and the reason: the database fails, or schedules are due and none leads."""
    try:
        reason = is_well()
    except Error as exc:
        reason = f"the database failed: {type(exc).__name__}"
    return _plain(reason or "ok", 503 if reason else 200)


@outside_transactions
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures; 401 without a right token, 403 for somebody logged in who is no staff."""
    if not _has_token(request) and not _is_staff(request):
        return _refusal(request)
    return HttpResponse(exposition(snapshot_metrics()), content_type=CONTENT_TYPE)


def _has_token(request: HttpRequest) -> bool:
    wanted = conf.current().METRICS_TOKEN
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if wanted is None or scheme.lower() != "bearer":
        return False
    return constant_time_compare(given.strip(), wanted)


def _is_staff(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)  # absent without Django's authentication
    return user is not None and user.is_active and user.is_staff


def _refusal(request: HttpRequest) -> HttpResponse:
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        return _plain("staff only", 403)
    response = _plain("a bearer token is needed", 401)
    response["WWW-Authenticate"] = 'Bearer realm="alkstore"'
    return response


def _plain(text: str, status: int) -> HttpResponse:
    return HttpResponse(text + "\n", status=status, content_type="text/plain; charset=utf-8")


# -- the figures ----------------------------------------------------------------------------------


@dataclass
class Metric:
    """One family: ``kind`` is "gauge" or "counter"."""

    name: str
    kind: str
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: str) -> None:
        if value is not None:
            self.samples.append((labels, value))


COUNTERS = {
    "claimed": ("alkstore_claims_total", "Claims of jobs by workers."),
    "acked": ("alkstore_acks_total", "Jobs that were done."),
    "retried": ("alkstore_retries_total", "Failures that are to be tried again."),
    "died": ("alkstore_deaths_total", "Jobs that died: failed for good, lapsed or expired."),
    "lost": ("alkstore_lost_claims_total", "Write-backs that came after the job was taken back."),
}


def snapshot_metrics(using: str | None = None) -> list[Metric]:
    """All families, from one snapshot and the totals of what workers counted."""
    seen = snapshot(using)
    engine = sql.engine(using)
    totals = reads.totals(engine, [status.queue for status in seen.queues])
    return [*_queue_gauges(seen), *_counters(totals), *_scheduler_gauges(seen)]


def _queue_gauges(seen: Snapshot) -> list[Metric]:
    jobs = Metric("alkstore_jobs", "gauge", "Jobs by state; counted up to 10000 of each.")
    oldest = Metric(
        "alkstore_oldest_ready_seconds", "gauge", "For how long the oldest ready job has waited."
    )
    due = Metric("alkstore_next_due_seconds", "gauge", "Until the next scheduled job is due.")
    overdue = Metric(
        "alkstore_overdue_seconds", "gauge", "For how long what was due has waited for a worker."
    )
    for status in seen.queues:
        labels = _labels(status.queue)
        for state in ("ready", "scheduled", "running", "lapsed", "dead"):
            jobs.add(getattr(status, state), **labels, state=state)
        oldest.add(status.oldest_ready_seconds or 0.0, **labels)
        due.add(status.next_due_seconds, **labels)
        overdue.add(status.overdue_seconds or 0.0, **labels)
    return [jobs, oldest, due, overdue]


def _counters(totals: Iterable[tuple]) -> list[Metric]:
    families = {name: Metric(total, "counter", text) for name, (total, text) in COUNTERS.items()}
    for queue, *figures in totals:
        for name, figure in zip(sql.COUNTED, figures, strict=True):
            families[name].add(int(figure), **_labels(queue))
    return list(families.values())


def _scheduler_gauges(seen: Snapshot) -> list[Metric]:
    late = Metric("alkstore_schedule_late_seconds", "gauge", "How overdue the next boundary is.")
    fired = Metric(
        "alkstore_fire_late_seconds", "gauge", "How long after its boundary the last fire was."
    )
    skipped = Metric(
        "alkstore_schedule_skipped", "gauge", "Boundaries that were dropped in the last day."
    )
    for status in seen.schedules:
        late.add(status.late_seconds, schedule=status.name)
        fired.add(status.fired_late_seconds, schedule=status.name)
        skipped.add(status.skipped, schedule=status.name)
    leads = seen.leader is not None and not seen.leader.lapsed
    leader = Metric("alkstore_leader", "gauge", "1 while a scheduler leads.")
    leader.add(int(leads))
    lease = Metric("alkstore_leader_lease_seconds", "gauge", "Until the lease lapses.")
    lease.add(seen.leader.expires_in_seconds if seen.leader else None)
    return [late, fired, skipped, leader, lease]


def _labels(queue: str) -> dict[str, str]:
    outbox = outbox_of(queue)
    if outbox is None:
        return {"queue": queue, "kind": "queue"}
    return {"queue": outbox, "kind": "outbox"}


# -- the text format ------------------------------------------------------------------------------


def exposition(families: Iterable[Metric]) -> str:
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: Metric) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        pairs = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
        yield (
            f"{family.name}{{{pairs}}} {_number(value)}"
            if pairs
            else (f"{family.name} {_number(value)}")
        )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: Any) -> str:
    return repr(value) if isinstance(value, int) else f"{value:.3f}"
