"""How often what happened in a run: the evidence that the run was worth something."""

from collections import Counter

from django_alkstore.names import SCHEDULER_LOCK

from .parties.acts import ACTS
from .parties.producing import Producer


def counted(evidence):
    """Of each kind of event the counts by name."""
    history = evidence.history
    return {
        "producers": Counter(line["way"] for line in history.events("placed")),
        "deliveries": Counter(line["act"] for line in history.events("entered")),
        "nemesis": _deeds(history),
        "left undone": Counter(line["deed"] for line in history.events("left")),
        "processes": Counter(map(_end, history.events("ended"))),
        "came to": _outcome(evidence),
    }


def never_happened(evidence):
    """What was wanted and did not happen even once: the run was too short for it, say."""
    wanted = {
        "producers": [way.__name__ for way in Producer.WAYS],
        "deliveries": ACTS,
        "nemesis": dict.fromkeys(line["deed"] for line in evidence.history.events("planned")),
    }
    happened = counted(evidence)
    return [name for kind, names in wanted.items() for name in names if name not in happened[kind]]


def _deeds(history):
    """How often, and for those that last, the longest."""
    seconds = {}
    for line in history.events("deed"):
        seconds.setdefault(line["deed"], []).append(line["seconds"])
    return {
        deed: f"{len(found)}" if None in found else f"{len(found)} (up to {max(found):.1f} s)"
        for deed, found in sorted(seconds.items())
    }


def _end(line):
    told = {9: "killed", 15: "stopped"}
    if line["told"]:
        return told[line["told"][-1]]
    return "killed by its job" if line["code"] == -9 else f"ended with {line['code']}"


def _outcome(evidence):
    history = evidence.history
    states = Counter(row["state"] for row in evidence.jobs.values())
    write_backs = [verb for verbs in history.verbs.values() for verb in verbs]
    claims = [claim for found in history.claims.values() for claim in found]
    return {
        "orders committed": len(evidence.orders),
        "claims": len(claims),
        "claims of a second attempt or later": sum(claim.attempt > 1 for claim in claims),
        "write-backs": len(write_backs),
        "write-backs refused as too late": sum(verb.matched is False for verb in write_backs),
        "jobs finished": len(evidence.finished),
        "jobs dead": states["dead"],
        "fires": sum(fire["job_id"] is not None for fire in evidence.fires),
        "boundaries skipped": sum(fire["skipped"] for fire in evidence.fires),
        "leases taken": len(history.takings.get(SCHEDULER_LOCK, ())),
        "locks taken": sum(len(found) for found in history.takings.values()),
    }
