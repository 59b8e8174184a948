"""How rows read to people: instants, spans, payloads, and the story of a job.

However broken a row is, it reads as something: a payload is read as text, and an instant far beyond
every clock stands for never and shows as "-". What is shown as relative to now is measured by this
host's clock, which decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db import models
from django.db.models.functions import Cast
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import get_default_timezone, is_naive, localtime, make_aware

from . import payloads, sql
from .exceptions import InvalidPayload
from .models import Job, Schedule, State
from .names import shown_name
from .options import YEARS
from .status import shown_span

NEVER = "-"
DUE_WORDS = {  # what happens at due_at, and what has happened once that has passed
    State.READY: ("expires", "expired"),
    State.SCHEDULED: ("ready", "ready"),
    State.RUNNING: ("claim lapses", "claim lapsed"),
}


def shown_instant(value: datetime | None) -> str:
    """To the second, in the current time zone."""
    if value is None or value.year not in YEARS:
        return NEVER
    return (value if is_naive(value) else localtime(value)).isoformat(" ", "seconds")


def aware(value: datetime) -> datetime:
    return make_aware(value, get_default_timezone()) if is_naive(value) else value


def seconds_until(value: datetime) -> float:
    return (aware(value) - sql.utc_now()).total_seconds()


def shown_age(value: datetime | None) -> str:
    if value is None or value.year not in YEARS:
        return NEVER
    return shown_span(-seconds_until(value))


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
    return NEVER if text is None else format_html('<pre class="alkstore-text">{}</pre>', text)


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


# -- the story of a job ---------------------------------------------------------------------------


def shown_ago(value: datetime | None) -> str:
    """An instant, and how long ago that was or how far ahead it is."""
    shown = shown_instant(value)
    return shown if value is None or shown == NEVER else f"{shown} ({_distance(value)})"


def _distance(value: datetime) -> str:
    seconds = seconds_until(value)
    return f"in {shown_span(seconds)}" if seconds > 0 else f"{shown_span(-seconds)} ago"


def story(job: Job) -> Iterator[str]:
    """What has become of a job so far, and what is next, a sentence each."""
    by = f" by the schedule {job.schedule}" if job.schedule else ""
    yield f"Enqueued in {shown_name(job.queue)}{by}: {shown_ago(job.created_at)}."
    if job.run_at and job.created_at and job.run_at >= job.created_at + timedelta(seconds=1):
        yield f"To run from {shown_ago(job.run_at)} on."
    if job.expires_at is not None:
        yield f"Not to start after {shown_ago(job.expires_at)}."
    yield f"Claimed {job.attempts} of at most {job.max_attempts} times."
    if job.last_error and job.state != State.DEAD:
        yield f"Its last failure: {_first_line(job.last_error)}"
    yield _now(job)


def _now(job: Job) -> str:
    if job.state == State.DEAD:
        return (
            f"Died {shown_ago(job.finished_at)}: {_first_line(job.last_error or 'no reason kept')}"
        )
    if job.state == State.DONE:
        return f"Done {shown_ago(job.finished_at)}."
    if job.state == State.RUNNING:
        return f"{job.worker_id or 'An unknown worker'} has it now; {shown_due(job)}."
    if job.state == State.SCHEDULED:
        waits = "Waits to be tried again" if job.attempts > 0 else "Waits for its time"
        return f"{waits}; {shown_due(job)}."
    if job.state == State.READY:
        return "Waits for a worker."
    return f"Its state, {job.state}, is none that a worker knows."


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]
