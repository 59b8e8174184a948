"""A run from start to verdict, on the database that Django is connected to."""

import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.db import connection, connections

from django_alkstore.models import Job, Schedule

from ..processes import database_url
from .evidence import Evidence, gather
from .history import Journal
from .nemesis import Deed, Nemesis, plan
from .parties.producing import SCHEDULES, register
from .rules import check
from .supervisor import SCHEDULERS, WORKERS, Supervisor, producers

DRAIN_SECONDS = 90.0
BEHIND = timedelta(seconds=200)  # more boundaries than a tick catches up with
LIVE = ("ready", "scheduled", "running")


@dataclass
class Verdict:
    """What a run came to."""

    seed: int
    evidence: Evidence
    faults: dict  # rule: its faults
    counts: dict
    refused: list  # processes that did not end by SIGTERM

    @property
    def holds(self):
        return not any(self.faults.values()) and not self.refused

    def lines(self):
        """To print: what was counted, each rule, and the story of what breaks one."""
        yield f"{connection.display_name}, seed {self.seed}"
        yield ", ".join(f"{count} {what}" for what, count in self.counts.items())
        for rule, faults in self.faults.items():
            yield f"  {'BROKEN' if faults else 'holds'}  {rule.replace('_', ' ')}"
            yield from (f"          {fault.sentence}" for fault in faults[:5])
        yield from (f"  BROKEN  {name} did not end by SIGTERM" for name in self.refused)
        yield from self.story()
        yield f"verdict: {'every promise held' if self.holds else 'BROKEN'}"

    def story(self):
        for faults in self.faults.values():
            for fault in faults[:1]:
                yield f"the story of {fault.subject} ({fault.sentence}):"
                yield from (f"    {line}" for line in self.evidence.story(fault.subject))
                return


def run(seed, seconds, directory, mutant=None, restarts=()):
    """Run for so many seconds, let everything come to rest, and judge."""
    path = Path(directory) / "journal.jsonl"
    journal = Journal(path)
    prepare(journal)
    deeds = plan(seed, seconds) + [Deed(at, "restart_server", 0, 0) for at in restarts]
    argvs = SCHEDULERS | WORKERS | producers(seed)
    with Supervisor(argvs, Path(directory), database_url(), mutant) as supervisor:
        until_all_work(path, supervisor)
        nemesis = Nemesis(supervisor, journal)
        begun = time.monotonic()
        nemesis.carry_out(sorted(deeds, key=lambda deed: deed.at))
        nemesis.stop.wait(begun + seconds - time.monotonic())
        nemesis.let_go()
        refused = supervisor.retire([*producers(seed), *SCHEDULERS])
        drain()
        refused += supervisor.retire(list(WORKERS))
    connections.close_all()
    evidence = gather(path)
    return Verdict(seed, evidence, check(evidence), counts(evidence, supervisor), refused)


def prepare(journal):
    """Register the schedules; one is far behind."""
    for name, seconds in SCHEDULES.items():
        row = register(name, seconds)
        if name == "behind":
            row.next_fire_at -= BEHIND
            Schedule.objects.filter(name=name).update(next_fire_at=row.next_fire_at)
        journal.write("scheduled", schedule=name, first=str(row.next_fire_at))


def until_all_work(path, supervisor):
    """Wait until jobs are being done, so that a short run is not over before it begins."""
    deadline = time.monotonic() + 30
    while '"finished"' not in path.read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(supervisor.log.read_text()[-4000:])
        time.sleep(0.05)


def drain():
    """Wait, not for ever, until no job is left that time or a worker would change."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while Job.objects.filter(state__in=LIVE).exists() and time.monotonic() < deadline:
        time.sleep(0.1)


def counts(evidence, supervisor):
    history = evidence.history
    deeds = Counter(line["deed"] for line in history.events("deed"))
    rows = Counter(row["state"] for row in evidence.jobs.values())
    return {
        "committed": len(evidence.orders),
        "rolled back": sum(len(line["marks"]) for line in history.events("rolled back")),
        "claims": sum(map(len, history.claims.values())),
        "deliveries": len(history.events("entered")),
        "finished": len(evidence.finished),
        "dead": rows["dead"],
        "fires": len(evidence.fires),
        "skipped boundaries": sum(fire["skipped"] for fire in evidence.fires),
        "takings of the lease": len(history.takings.get("__alkstore_scheduler", ())),
        **dict(sorted(deeds.items())),
        "killed by their job": supervisor.ends.count(-9),
        "ended with an error": sum(code > 0 for code in supervisor.ends),
    }
