"""The journal: what every party of a run saw and did, in one append-only file outside the database.

A line is one append, so the order of the lines is an order of events that no clock can upset: what
is written before another line happened before whatever that line was written after. What a
process was asked is written before, what came of it after; a process that is killed in between
leaves a question without an answer, and one that is killed while it writes the beginning of a line,
which counts as not written.
"""

import itertools
import json
import os
import threading
import time
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

JOURNAL = "TORTURE_JOURNAL"  # the environment variable with its path
ENDING = ("ack", "keep", "fail")  # the verbs after which a job never runs again
GIVING_BACK = ("retry", "release")
BEGINNING = '{"event"'  # of a line, and of nothing inside it
SAID_FIRST = ("event", "at", "pid", "call")


class Journal:
    """Writes lines; one per process."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.numbers = itertools.count()

    def __del__(self):
        os.close(self.file)

    def write(self, event, **fields):
        line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **fields}
        os.write(self.file, json.dumps(line, default=str).encode() + b"\n")

    def new_call(self):
        """What pairs a question with its answer."""
        return f"{os.getpid()}:{threading.get_ident()}:{next(self.numbers)}"


def journal():
    """The journal that the environment names."""
    return _open(os.environ[JOURNAL])


@lru_cache(maxsize=1)
def _open(path):
    return Journal(path)


@dataclass(frozen=True)
class Claim:
    """One job of one claim; ``asked`` and ``answered`` are line numbers."""

    id: int
    token: int
    attempt: int
    max_attempts: int
    visibility_timeout: float
    asked: int
    asked_at: float
    answered: int
    answered_at: float

    def is_after(self, other):
        """Whether this claim is surely the later one. Attempts never go down, but a release gives
        its own back, so two claims in turn can have the same number."""
        return self.attempt > other.attempt or self.asked > other.answered


@dataclass(frozen=True)
class Verb:
    """A write-back of one job, or of a lock. ``matched``: None where nobody knows."""

    verb: str
    subject: object  # the id of a job, or the name of a lock
    token: int
    asked: int
    asked_at: float
    answered: int | None
    matched: bool | None
    seconds: float | None  # what a heartbeat, a renewal or a retry asked for
    inside: bool  # a transaction, so that even what matched may have been undone

    def lapses_at(self, before):
        """No instant before this can find the claim or lease lapsed that lapsed at ``before``."""
        if self.matched is False:
            return before
        extended = self.asked_at + self.seconds
        return extended if self.matched and not self.inside else min(before, extended)


@dataclass(frozen=True)
class Taking:
    """An acquisition of a lock."""

    name: str
    owner: str
    token: int
    ttl: float
    asked: int
    asked_at: float
    answered: int
    answered_at: float


class History:
    """A journal that is read: the lines, and what they say about jobs and locks."""

    def __init__(self, lines):
        self.lines = list(lines)

    @classmethod
    def read(cls, path):
        lines = Path(path).read_text().splitlines(keepends=True)
        # Where a line was not ended, the next one follows it on the same.
        whole = (line[line.rfind(BEGINNING) :] for line in lines if line.endswith("\n"))
        return cls(map(json.loads, whole))

    def events(self, *names):
        return [line for line in self.lines if line["event"] in names]

    @cached_property
    def _answers(self):
        return {
            line["call"]: (number, line)
            for number, line in enumerate(self.lines)
            if line["event"] == "answered"
        }

    def _calls(self, *verbs):
        """The questions with their answers, or None: number, line, number, line."""
        for number, line in enumerate(self.lines):
            if line["event"] == "asked" and line["verb"] in verbs:
                yield number, line, *self._answers.get(line["call"], (None, None))

    @cached_property
    def claims(self):
        """Of each job its claims, in the order of the answers."""
        found = [
            Claim(job["id"], line["token"], job["attempt"], job["max_attempts"],
                  job["visibility_timeout"], asked, line["at"], answered, answer["at"])
            for asked, line, answered, answer in self._calls("claim")
            if answer is not None
            for job in answer["jobs"]
        ]  # fmt: skip
        return _by(lambda claim: claim.id, sorted(found, key=lambda claim: claim.answered))

    @cached_property
    def verbs(self):
        """Of each job its write-backs, in the order of the questions."""
        verbs = (*ENDING, *GIVING_BACK, "heartbeat")
        found = (verb for call in self._calls(*verbs) for verb in _of_each_job(*call))
        return _by(lambda verb: verb.subject, found)

    @cached_property
    def takings(self):
        """Of each lock its acquisitions, by token."""
        found = [
            Taking(line["name"], line["owner"], answer["token"], line["seconds"], asked,
                   line["at"], answered, answer["at"])
            for asked, line, answered, answer in self._calls("take_lock")
            if answer is not None and answer["token"] is not None
        ]  # fmt: skip
        return _by(lambda taking: taking.name, sorted(found, key=lambda taking: taking.token))

    @cached_property
    def lock_verbs(self):
        """Of each lock its renewals and releases."""
        found = (
            Verb(line["verb"], line["name"], line["token"], asked, line["at"], answered,
                 answer and answer["matched"], line["seconds"], line["inside"])
            for asked, line, answered, answer in self._calls("renew_lock", "release_lock")
        )  # fmt: skip
        return _by(lambda verb: verb.subject, found)

    @cached_property
    def begun(self):
        """The processes (by pid) that came to their work: from then on they mind signals."""
        return {line["pid"] for line in self.events("asked", "enqueued")}

    @cached_property
    def process_names(self):
        """Of each process (by pid) the name that it was started under."""
        return {line["process"]: line["name"] for line in self.events("started")}

    @staticmethod
    def is_about(line, subjects):
        """Whether a line is about any of them: ids of jobs, marks, or the name of a lock, a
        schedule or a process."""
        values = [line.get(word) for word in ("id", "mark", "name", "schedule")]
        values += line.get("ids", []) + line.get("marks", [])
        return not subjects.isdisjoint([*values, *(job["id"] for job in line.get("jobs", []))])

    def about(self, subjects):
        """The lines about any of them, the questions that such lines answer included."""
        found = [line for line in self.lines if self.is_about(line, subjects)]
        calls = {line["call"] for line in found if "call" in line}
        return [line for line in self.lines
                if line.get("call") in calls or self.is_about(line, subjects)]  # fmt: skip

    def tell(self, line, subjects):
        """A line for people: of many jobs, only those that are among the subjects."""
        seconds, pid = line["at"] - self.lines[0]["at"], line["pid"]
        said = {word: value for word, value in line.items() if word not in SAID_FIRST}
        for word in {"ids", "marks"} & said.keys():
            said[word] = [*subjects.intersection(said[word]), f"of {len(said[word])}"]
        if "jobs" in said:
            said["jobs"] = [job for job in said["jobs"] if job["id"] in subjects]
        words = ", ".join(f"{word} {value}" for word, value in said.items() if value is not None)
        who = f"{self.process_names.get(pid, 'the run')} ({pid})"
        return f"{seconds:9.3f} s  {who}  {line['event']}  {words}"


def _of_each_job(asked, line, answered, answer):
    ids = line["ids"]
    for id in ids:
        matched = None
        if answer is not None and answer["matched"] in (0, len(ids)):
            matched = answer["matched"] > 0
        yield Verb(line["verb"], id, line["token"], asked, line["at"], answered, matched,
                   line["seconds"], line["inside"])  # fmt: skip


def _by(key, found):
    groups = {}
    for item in found:
        groups.setdefault(key(item), []).append(item)
    return groups
