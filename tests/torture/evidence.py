"""What a run leaves behind: the journal, and the tables once everything has come to rest."""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from django_alkstore import models, sql
from testproject.shop.models import Order

from .history import History

STORY_LINES = 30


@dataclass
class Evidence:
    history: History
    jobs: dict = field(default_factory=dict)  # id: the columns
    fires: list = field(default_factory=list)
    schedules: dict = field(default_factory=dict)  # name: the columns
    locks: list = field(default_factory=list)
    orders: set = field(default_factory=set)  # the items of those that committed
    gathered_at: datetime | None = None

    @cached_property
    def enqueued(self):
        """Of each mark the ids that its producer was given. The id of a job that was rolled back
        may have been given again."""
        return _ids_by_mark((line["mark"], line["id"]) for line in self.history.events("enqueued"))

    @cached_property
    def seen(self):
        """Of each mark the ids of the jobs that receivers were handed or that have a row."""
        entered = [(line["mark"], line["id"]) for line in self.history.events("entered")]
        rows = [(row["payload"]["mark"], id) for id, row in self.jobs.items()]
        return _ids_by_mark(entered + rows)

    @cached_property
    def entered(self):
        """Of each job the lines that a receiver wrote when it was handed the job."""
        found = {}
        for line in self.history.events("entered"):
            found.setdefault(line["id"], []).append(line)
        return found

    @cached_property
    def finished(self):
        """The jobs that a receiver was done with, once at least."""
        return {line["id"] for line in self.history.events("finished")}

    def story(self, subject):
        """What is known of a job, a mark, a lock, a schedule or a process, line by line."""
        subjects = self._ids_and_marks(subject)
        told = [self.history.tell(line, subjects) for line in self.history.about(subjects)]
        rows = [("job", self.jobs[one]) for one in subjects if one in self.jobs]
        rows += [("fire", fire) for fire in self.fires
                 if fire["job_id"] in subjects or fire["schedule"] == subject]  # fmt: skip
        rows += [("lock", lock) for lock in self.locks if lock["name"] == subject]
        told += [f"the row of the {what}: {_in_words(row)}" for what, row in rows]
        return _shortened(told)

    def _ids_and_marks(self, subject):
        """A job goes by its id and by its mark."""
        ids = {subject, *self.enqueued.get(subject, ()), *self.seen.get(subject, ())}
        return ids | {mark for mark, seen in self.seen.items() if not ids.isdisjoint(seen)}


def gather(journal_path):
    """The evidence in the journal and in the database as it is now."""
    return Evidence(
        History.read(journal_path),
        {row["id"]: row for row in models.Job.objects.values()},
        list(models.Fire.objects.order_by("schedule", "boundary").values()),
        {row["name"]: row for row in models.Schedule.objects.values()},
        list(models.Lock.objects.values()),
        set(Order.objects.values_list("item", flat=True)),
        sql.engine().clock(),
    )


def _in_words(row):
    return ", ".join(f"{name} {value}" for name, value in row.items() if value not in (None, ""))


def _shortened(lines):
    """The beginning and the end of a long story."""
    if len(lines) <= 2 * STORY_LINES:
        return lines
    between = f"... {len(lines) - 2 * STORY_LINES} lines ..."
    return [*lines[:STORY_LINES], between, *lines[-STORY_LINES:]]


def _ids_by_mark(pairs):
    found = {}
    for mark, id in pairs:
        if mark is not None:
            found.setdefault(mark, set()).add(id)
    return found
