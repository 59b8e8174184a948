"""What people do to jobs: requeue, cancel, run now, change priority.

Each verb is one conditional statement per batch of ids, and waits for nobody: a job that a worker
took in between, or has locked, is left alone, and the answer says so. What is chosen by a
``Selection`` is found by a walk along the ids in bounded windows, each committed by itself, so that
any selection can be stopped, and started again. What was not there at the start is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from . import sql, wakeups
from .backoff import Duration, seconds
from .exceptions import InvalidOption, expected
from .options import checked, whole_number

WINDOW_ROWS = 5_000
GONE = "gone"
ID_MAX = 2**63 - 1


@dataclass(frozen=True)
class Verb:
    """``states``: of which a job must be one. ``done``: the word for what has been done to it.
    ``readies``: whether it makes jobs ready, so that idle workers are told."""

    done: str
    states: tuple[str, ...]
    change: str
    params: dict[str, Any] = field(default_factory=dict)
    readies: bool = False

    @property
    def which(self) -> str:
        return f"LOWER(state) IN ({', '.join(map(repr, self.states))})"


# Its error stays until the next: it says why the job was dead. An expiry that it had goes, or the
# job would die of it at once.
REQUEUE = Verb("requeued", ("dead",), sql.REQUEUE, readies=True)
RUN_NOW = Verb("made ready", ("scheduled",), sql.RUN_NOW, readies=True)
CANCEL = Verb("cancelled", ("ready", "scheduled"), sql.CANCEL_THESE)


def priority_verb(priority: int) -> Verb:
    """Give jobs that wait another priority. Raises InvalidOption for one that is no int."""
    params = checked({"priority": priority})
    return Verb(f"given priority {priority}", ("ready", "scheduled"), sql.REORDER, params)


@dataclass(frozen=True)
class Changed:
    """``ids``: those that the verb has changed. ``left``: the state of each that it left alone;
    "gone" if there is no such job."""

    ids: list[int]
    left: dict[int, str]


def requeue(ids: Iterable[int], using: str | None = None) -> Changed:
    """Let dead jobs run again, now, with all their attempts, keeping the error they died of."""
    return change(REQUEUE, ids, using)


def cancel(ids: Iterable[int], using: str | None = None) -> Changed:
    """Let jobs that wait die as cancelled."""
    return change(CANCEL, ids, using)


def run_now(ids: Iterable[int], using: str | None = None) -> Changed:
    """Make jobs ready that wait for a delay or a retry."""
    return change(RUN_NOW, ids, using)


def set_priority(ids: Iterable[int], priority: int, using: str | None = None) -> Changed:
    """Give jobs that wait another priority."""
    return change(priority_verb(priority), ids, using)


def change(verb: Verb, ids: Iterable[int], using: str | None = None) -> Changed:
    """Do ``verb`` to the jobs, and say of each what came of it."""
    wanted = [whole_number("each id", id, 0, ID_MAX) for id in dict.fromkeys(ids)]
    engine = sql.engine(using)
    news = wakeups.announcement_of_rows(engine.alias) if verb.readies else ""
    changed = set(engine.change_these(verb.change, wanted, verb.which, verb.params, news))
    others = [id for id in wanted if id not in changed]
    states = engine.states_of(others)
    left = {id: states.get(id, GONE) for id in others}
    return Changed([id for id in wanted if id in changed], left)


def release_lock(name: str, owner: str, token: int, using: str | None = None) -> bool:
    """Free a lock, if it still is in the hands that the caller saw; its holder is not told."""
    return sql.engine(using).release_lock(name, owner, token)


# -- many -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Which jobs: what is None does not matter. ``older_than``: created so long ago."""

    queue: str | None = None  # as rows have it
    schedule: str | None = None
    state: str | None = None
    older_than: Duration | None = None

    def condition(self, engine: sql.Engine, verb: Verb) -> tuple[str, dict[str, Any]]:
        """The SQL of it, and its parameters."""
        if self.state is not None and self.state not in verb.states:
            raise InvalidOption(expected("state", f"one of {', '.join(verb.states)}", self.state))
        states = verb.states if self.state is None else (self.state,)
        parts = [f"state IN ({', '.join(map(repr, states))})"]
        params: dict[str, Any] = {"queue": self.queue, "schedule": self.schedule}
        parts += [f"{name} = %({name})s" for name in params if params[name] is not None]
        if self.older_than is not None:
            age = timedelta(seconds=seconds("older_than", self.older_than))
            parts.append("created_at < %(created_before)s")
            params["created_before"] = engine.write(engine.clock() - age)
        return " AND ".join(parts), params


@dataclass(frozen=True)
class Window:
    """One step along the ids: ``ids`` are the selected ones, ``last`` is where it ended."""

    ids: list[int]
    last: int
    until: int


def windows(verb: Verb, selection: Selection, using: str | None = None) -> Iterator[Window]:
    """The jobs that ``verb`` would be done to, a bounded step at a time; changes nothing."""
    engine = sql.engine(using)
    which, params = selection.condition(engine, verb)
    last, until = -1, engine.last_id()
    while last < until:
        rows = engine.window(last, WINDOW_ROWS, which, params)
        if not rows:
            return
        last = rows[-1][0]
        yield Window([id for id, chosen in rows if chosen and id <= until], last, until)


def change_selected(
    verb: Verb, selection: Selection, using: str | None = None
) -> Iterator[tuple[Window, Changed]]:
    """Do ``verb`` to the selected jobs, a window at a time."""
    for window in windows(verb, selection, using):
        yield window, change(verb, window.ids, using)
