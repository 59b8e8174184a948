"""A run from start to verdict, on the database that Django is connected to."""

import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.db import connection, connections

from django_alkstore import sql
from django_alkstore.models import Job, Schedule

from ..processes import database_url
from .counting import counted, never_happened
from .evidence import Evidence, gather
from .history import History, Journal
from .nemesis import NEEDS_A_SERVER, Deed, Nemesis, plan
from .parties.producing import SCHEDULES, register
from .restarting import restarts
from .rules import check
from .supervisor import SCHEDULERS, WORKERS, Supervisor, producers

PATIENCE = 180.0  # for what must come: generous, as the machine may be busy with something else
BEHIND = timedelta(seconds=200)  # more boundaries than a tick catches up with
LIVE = ("ready", "scheduled", "running")
FAULTS_SHOWN = 5
LOG_SHOWN = 4_000  # characters


@dataclass
class Verdict:
    """What a run came to."""

    seed: int
    seconds: float
    evidence: Evidence
    faults: dict  # rule: its faults

    @property
    def holds(self):
        return not any(self.faults.values())

    def lines(self):
        """To print: what was counted, each rule, and the story of what breaks one."""
        yield f"{connection.display_name}, seed {self.seed}, {self.seconds:.0f} s"
        for what, counts in counted(self.evidence).items():
            listed = [f"{name} {count}" for name, count in counts.items()]
            yield f"  {what}: {', '.join(listed) or 'nothing'}"
        yield f"  never happened: {', '.join(never_happened(self.evidence)) or 'nothing'}"
        for rule, faults in self.faults.items():
            yield f"  {'BROKEN' if faults else 'holds '}  {rule.replace('_', ' ')}"
            yield from (f"          {fault.sentence}" for fault in faults[:FAULTS_SHOWN])
        yield from self.stories()
        yield f"verdict: {'every promise held' if self.holds else 'BROKEN'}"

    def stories(self):
        """For each rule that is broken, the history of the one job that breaks it first."""
        for rule, faults in self.faults.items():
            for fault in faults[:1]:
                yield f"the story of {fault.subject} ({rule.replace('_', ' ')}: {fault.sentence}):"
                yield from (f"  {line}" for line in self.evidence.story(fault.subject))


def run(seed, seconds, directory, mutant=None, restart=None):
    """Run for so many seconds, let everything come to rest, and judge.

    ``restart``: the command that restarts the server, now and then.
    """
    path = Path(directory) / "journal.jsonl"
    journal = Journal(path)
    prepare(journal)
    argvs = SCHEDULERS | WORKERS | producers(seed)
    with Supervisor(argvs, Path(directory), database_url(), journal, mutant) as supervisor:
        if not until(lambda: all_at_work(supervisor, path)):
            raise TimeoutError(supervisor.log.read_text()[-LOG_SHOWN:])
        nemesis = Nemesis(supervisor, journal, restart)
        nemesis.carry_out(deeds(seed, seconds, restart), seconds)
        nemesis.let_go()
        come_to_rest(supervisor, journal, seed)
    connections.close_all()
    evidence = gather(path)
    return Verdict(seed, seconds, evidence, check(evidence))


def prepare(journal):
    """Register the schedules; some are far behind."""
    for name in SCHEDULES:
        row = register(name)
        if name.startswith("behind"):
            row.next_fire_at -= BEHIND
            Schedule.objects.filter(name=name).update(next_fire_at=row.next_fire_at)
        journal.write("scheduled", schedule=name, first=str(row.next_fire_at))


def deeds(seed, seconds, restart):
    """The plan as far as the database allows, with the restarts in it."""
    found = plan(seed, seconds)
    if connection.vendor == "sqlite":
        found = [deed for deed in found if deed.what not in NEEDS_A_SERVER]
    if restart is not None:
        found += [Deed(at, "restart_server") for at in restarts(seconds)]
    return sorted(found, key=lambda deed: deed.at)


def come_to_rest(supervisor, journal, seed):
    """Nothing is placed any more; wait until all that is due is fired and done.

    What does not come in time, the rules will say.
    """
    now = sql.engine().clock()
    journal.write("calm", now=now)
    supervisor.retire(producers(seed))
    until(lambda: not Schedule.objects.filter(next_fire_at__lte=now).exists())
    supervisor.retire(SCHEDULERS)
    until(lambda: not Job.objects.filter(state__in=LIVE).exists())
    supervisor.retire(WORKERS)


def all_at_work(supervisor, path):
    """Whether each process has begun, so that a short run is not over before it begins."""
    history = History.read(path)
    pids = {process.pid for process in list(supervisor.running.values())}
    return pids <= history.begun and history.events("finished")


def until(condition):
    """Wait for it, but not for ever; what came of it."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return result
