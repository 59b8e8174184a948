"""What status looks like on a terminal: aligned columns of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..status import LeaderStatus, QueueStatus, ScheduleStatus, shown_span

NOTHING = "-"


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first is to the left, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def queue_table(queues: Iterable[QueueStatus]) -> str:
    head = ["queue", "ready", "oldest", "scheduled", "next due", "running", "lapsed", "dead",
            "done 1h", "failed 1h"]  # fmt: skip
    return aligned(head, [_queue_row(status) for status in queues])


def _queue_row(status: QueueStatus) -> list[str]:
    return [
        status.name,
        status.shown("ready"),
        _span(status.oldest_ready_seconds),
        status.shown("scheduled"),
        "now" if status.next_due_seconds == 0 else _span(status.next_due_seconds),
        status.shown("running"),
        status.shown("lapsed"),
        status.shown("dead"),
        f"{status.done_last_hour:,}",
        f"{status.failed_last_hour:,}",
    ]


def schedule_table(schedules: Iterable[ScheduleStatus]) -> str:
    head = ["schedule", "spec", "queue", "next boundary", "last fired", "late", "skipped 1d"]
    return aligned(head, [_schedule_row(status) for status in schedules])


def _schedule_row(status: ScheduleStatus) -> list[str]:
    instants = [
        NOTHING if at is None else at.isoformat(" ", "seconds")
        for at in (status.next_fire_at, status.last_fired_at)
    ]
    return [status.name, status.spec, status.queue, *instants, _late(status), f"{status.skipped:,}"]


def _late(status: ScheduleStatus) -> str:
    if not status.enabled:
        return "paused"
    if status.ended:
        return "ended"
    return "waits" if status.waits else _span(status.late_seconds or None)


def leader_line(leader: LeaderStatus | None) -> str:
    if leader is None:
        return "no scheduler leads"
    age = shown_span(leader.age_seconds)
    if leader.lapsed:
        return f"no scheduler leads: {leader.owner} did, and has been gone for " + shown_span(
            -leader.expires_in_seconds
        )
    return f"{leader.owner} leads the scheduler, for {age}"


def _span(seconds: float | None) -> str:
    return NOTHING if seconds is None else shown_span(seconds)
