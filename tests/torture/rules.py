"""The checker: one function per rule, which yields a fault for each time that the rule is broken.

A rule says only what the evidence proves. Where a process was killed between a question and its
answer, or a transaction may have been undone, nobody knows, and no fault is made of it.
"""

import signal
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from django_alkstore.specs import parse_spec

from .history import ENDING, GIVING_BACK
from .parties.acts import LEAKED, be_killed_once

CLOCK_SLACK = 0.05  # between the clock of the processes and the server's, on one host
FAR_AHEAD = timedelta(seconds=1)
SECOND_SIGTERM = (128 + signal.SIGTERM, -signal.SIGTERM)  # its codes, before and after the end
KILLING = be_killed_once.__name__


class Fault(NamedTuple):
    """A sentence, and the job, mark, lock, schedule or process whose story explains it."""

    sentence: str
    subject: object


def check(evidence):
    """The faults by rule; a rule that holds has none."""
    return {rule.__name__: list(rule(evidence)) for rule in RULES}


# -- nothing is lost, nothing leaks ---------------------------------------------------------------


def every_committed_job_is_delivered_or_dead(evidence):
    committed = evidence.orders - {LEAKED} | set(_marks(evidence, "committed"))
    for mark in sorted(committed):
        ids = evidence.enqueued.get(mark, set()) | evidence.seen.get(mark, set())
        if not ids:
            yield Fault(f"{mark} committed, and its job is nowhere", mark)
        for id in ids:
            yield from _unless_settled(evidence, id, mark)
    for fire in evidence.fires:
        if fire["job_id"] is not None:
            yield from _unless_settled(evidence, fire["job_id"], fire["schedule"])
    for id, row in evidence.jobs.items():
        if row["state"] == "dead" and not row["last_error"]:
            yield Fault(f"job {id} is dead without a reason", id)


def _unless_settled(evidence, id, what):
    state = evidence.jobs[id]["state"] if id in evidence.jobs else "gone"
    if id not in evidence.finished and state in ("gone", "done"):
        yield Fault(f"job {id} of {what} is {state}, and nobody finished it", id)


def nothing_rolled_back_is_seen(evidence):
    alone = set(_marks(evidence, "placing"))
    for mark, ids in evidence.seen.items():
        if mark not in evidence.orders | alone:
            yield Fault(f"the job of {mark} was seen, and its order rolled back", min(ids))
    if LEAKED in evidence.orders:
        yield Fault("an order was committed that a receiver had left open", LEAKED)


def _marks(evidence, *events):
    for line in evidence.history.events(*events):
        yield from line.get("marks", ())
        if "mark" in line:
            yield line["mark"]


def every_live_job_comes_to_an_end(evidence):
    """Nothing is stuck, in running above all."""
    for id, row in evidence.jobs.items():
        if row["state"] in ("ready", "scheduled", "running"):
            yield Fault(f"job {id} is still {row['state']}", id)


def processes_end_only_when_told(evidence):
    """Neither what a delivery does nor a lost database ends a worker, or keeps one from ending."""
    history = evidence.history
    killers = {line["pid"] for line in history.events("entered") if line["act"] == KILLING}
    for line in history.events("ended"):
        process, name, code = line["process"], line["name"], line["code"]
        if process in history.begun and not _ended_well(code, line["told"], process in killers):
            told = f"told {line['told']}" if line["told"] else "and nobody told it to"
            yield Fault(f"{name} (pid {process}) ended with {code}, {told}", name)


def _ended_well(code, told, kills_itself):
    if code == -signal.SIGKILL:
        return kills_itself or signal.SIGKILL in told
    if code in SECOND_SIGTERM:
        return told.count(signal.SIGTERM) > 1
    return code == 0 and signal.SIGTERM in told


# -- attempts -------------------------------------------------------------------------------------


def attempts_stay_within_max(evidence):
    for id, row in evidence.jobs.items():
        if row["attempts"] > row["max_attempts"]:
            yield Fault(f"row {id} has {row['attempts']} of {row['max_attempts']} attempts", id)
    for id, claims in evidence.history.claims.items():
        for claim in claims:
            if claim.attempt > claim.max_attempts:
                yield Fault(f"job {id} was claimed for attempt {claim.attempt}", id)
        yield from _repeated_attempts(id, claims, evidence.history.verbs.get(id, ()))


def _repeated_attempts(id, claims, verbs):
    """The same number twice, but for what was released in between."""
    released = sum(v.verb == "release" and v.matched is not False for v in verbs)
    for attempt, times in Counter(claim.attempt for claim in claims).items():
        if times > 1 + released:
            yield Fault(f"job {id} was claimed {times} times for attempt {attempt}", id)


# -- one owner ------------------------------------------------------------------------------------


def no_stale_verb_succeeds(evidence):
    history = evidence.history
    for id, claims in history.claims.items():
        of_token = {claim.token: claim for claim in claims}
        if len(of_token) < len(claims):
            yield Fault(f"two claims of job {id} have one token", id)
        for verb in history.verbs.get(id, ()):
            claim = of_token.get(verb.token)
            if verb.matched and claim and _taken_before(verb, claim, claims):
                yield Fault(f"{verb.verb} of job {id} succeeded with a claim taken back", id)


def _taken_before(verb, claim, claims):
    return any(other.is_after(claim) and other.answered < verb.asked for other in claims)


def claims_do_not_overlap(evidence):
    """Nobody gets a job before the claim on it has lapsed or has been given up."""
    history = evidence.history
    for id, claims in history.claims.items():
        verbs = history.verbs.get(id, [])
        for claim, following in pairwise(claims):
            own = [v for v in verbs if v.token == claim.token and v.asked < following.answered]
            if any(v.verb in (*ENDING, *GIVING_BACK) for v in own) or _let_lapse(
                history, id, claim.asked, following.answered
            ):
                continue
            lapses_at = claim.asked_at + claim.visibility_timeout
            for beat in own:
                lapses_at = beat.lapses_at(lapses_at)
            if following.answered_at < lapses_at - CLOCK_SLACK:
                yield Fault(f"job {id} was claimed while it was claimed", id)


def _let_lapse(history, subject, first, last):
    """Whether somebody wrote down, between two lines, that he let it lapse before its time."""
    return any(
        line["event"] == "let lapse" and history.is_about(line, {subject})
        for line in history.lines[first:last]
    )


def what_has_ended_stays_ended(evidence):
    for id, verbs in evidence.history.verbs.items():
        ends = [verb for verb in verbs if verb.verb in ENDING and verb.matched]
        if len(ends) > 1:
            yield Fault(f"job {id} ended {len(ends)} times", id)
        for claim in evidence.history.claims.get(id, ()):
            if ends and claim.asked > ends[0].answered:
                yield Fault(f"job {id} was claimed after its {ends[0].verb}", id)


def nothing_runs_before_its_time(evidence):
    """A delay, and the pause before a retry, are waited for."""
    history = evidence.history
    for number, line in enumerate(history.lines):
        if line["event"] == "enqueued" and line["id"] in evidence.seen.get(line["mark"], ()):
            yield from _early(history, line["id"], number, line["since"] + line.get("delay", 0))
    for id, verbs in history.verbs.items():
        for verb in verbs:
            if verb.verb == "retry" and verb.matched and not verb.inside:
                yield from _early(history, id, verb.answered, verb.asked_at + verb.seconds)


def _early(history, id, number, time):
    """The first claim after a line, if it came before the time."""
    for claim in history.claims.get(id, ()):
        if claim.asked > number:
            is_early = claim.answered_at < time - CLOCK_SLACK
            if is_early and not _let_lapse(history, id, number, claim.answered):
                yield Fault(f"job {id} was claimed before its time", id)
            return


def keys_are_stable(evidence):
    owners = {}
    for id, lines in evidence.entered.items():
        keys = {line["key"] for line in lines}
        if len(keys) > 1:
            yield Fault(f"job {id} had the keys {sorted(keys)}", id)
        for key in keys:
            if owners.setdefault(key, id) != id:
                yield Fault(f"the jobs {owners[key]} and {id} had one key, {key}", id)
    for mark, ids in evidence.seen.items():
        if len(ids) > 1:
            yield Fault(f"{mark} became the jobs {sorted(ids)}", mark)


# -- boundaries -----------------------------------------------------------------------------------


def each_boundary_has_one_fire_and_one_job(evidence):
    jobs = {}
    for id, name, boundary in _scheduled_jobs(evidence):
        jobs.setdefault((name, boundary), set()).add(id)
    fires = {}
    for fire in evidence.fires:
        if fire["job_id"] is not None:  # else it says that its boundary was dropped
            fires.setdefault((fire["schedule"], str(fire["boundary"])), []).append(fire["job_id"])
    for slot in sorted({*jobs, *fires}):
        found, recorded = sorted(jobs.get(slot, ())), sorted(fires.get(slot, ()))
        if found != recorded or len(recorded) != 1:
            name, boundary = slot
            yield Fault(f"{name} at {boundary}: the jobs {found}, the fires {recorded}",
                        max(found + recorded, default=name))  # fmt: skip


def _scheduled_jobs(evidence):
    """The id, the schedule and the boundary of every job that anybody saw."""
    for id, row in evidence.jobs.items():
        if row["schedule"]:
            yield id, row["schedule"], str(row["scheduled_for"])
    for id, lines in evidence.entered.items():
        if lines[0]["schedule"]:
            yield id, lines[0]["schedule"], lines[0]["scheduled_for"]


def missing_boundaries_are_recorded_as_skipped(evidence):
    """And all that had passed when the nemesis was gone are in the ledger."""
    for line in evidence.history.events("scheduled"):
        row = evidence.schedules[line["schedule"]]
        interval = parse_spec(row["spec"]).interval
        fires = [fire for fire in evidence.fires if fire["schedule"] == row["name"]]
        expected = line["first"]
        for fire in fires:
            if str(fire["boundary"]) != expected:
                yield Fault(f"{row['name']} fired at {fire['boundary']}, not {expected}",
                            row["name"])  # fmt: skip
            count = fire["skipped"] + (fire["job_id"] is not None)
            expected = str(fire["boundary"] + count * interval)
        if str(row["next_fire_at"]) != expected:
            yield Fault(f"{row['name']} is to fire next at {row['next_fire_at']}, not {expected}",
                        row["name"])  # fmt: skip
        for calm in evidence.history.events("calm"):
            if row["next_fire_at"] <= datetime.fromisoformat(calm["now"]):
                yield Fault(f"{row['name']} has not fired at {row['next_fire_at']}", row["name"])


def a_replaced_leader_fires_nothing(evidence):
    """Fires are numbered in the order of the leases that they were made under."""
    takings = [taking for found in evidence.history.takings.values() for taking in found]
    tokens = {taking.owner: taking.token for taking in takings}
    latest = 0
    for fire in sorted(evidence.fires, key=lambda fire: fire["id"]):
        token = tokens.get(fire["leader"], latest)
        if token < latest:
            yield Fault(f"{fire['schedule']} at {fire['boundary']} was fired by a leader that had"
                        " been replaced", fire["job_id"])  # fmt: skip
        latest = max(latest, token)


# -- locks ----------------------------------------------------------------------------------------


def no_stale_lock_verb_succeeds(evidence):
    for name, verbs in evidence.history.lock_verbs.items():
        takings = evidence.history.takings.get(name, ())
        for verb in verbs:
            if verb.matched and any(
                taking.token > verb.token and taking.answered < verb.asked for taking in takings
            ):
                yield Fault(f"{verb.verb} of {name} succeeded after another took it", name)


def no_lock_is_taken_before_it_lapses(evidence):
    for name, takings in evidence.history.takings.items():
        verbs = evidence.history.lock_verbs.get(name, [])
        if len({taking.token for taking in takings}) < len(takings):
            yield Fault(f"{name} was taken twice with one token", name)
        for taking, following in pairwise(takings):
            own = [v for v in verbs if v.token == taking.token and v.asked < following.answered]
            if any(verb.verb == "release_lock" for verb in own) or _let_lapse(
                evidence.history, name, taking.asked, following.answered
            ):
                continue
            lapses_at = taking.asked_at + taking.ttl
            for renewal in own:
                lapses_at = renewal.lapses_at(lapses_at)
            if following.answered_at < lapses_at - CLOCK_SLACK:
                yield Fault(f"{name} was taken while it was held", name)


def no_lock_outlives_its_lease(evidence):
    for row in evidence.locks:
        takings = evidence.history.takings.get(row["name"], ())
        longest = timedelta(seconds=max((taking.ttl for taking in takings), default=0))
        if row["expires_at"] > evidence.gathered_at + longest + FAR_AHEAD:
            yield Fault(f"{row['name']} is held until {row['expires_at']}", row["name"])


RULES = (
    every_committed_job_is_delivered_or_dead,
    nothing_rolled_back_is_seen,
    every_live_job_comes_to_an_end,
    processes_end_only_when_told,
    attempts_stay_within_max,
    no_stale_verb_succeeds,
    claims_do_not_overlap,
    what_has_ended_stays_ended,
    nothing_runs_before_its_time,
    keys_are_stable,
    each_boundary_has_one_fire_and_one_job,
    missing_boundaries_are_recorded_as_skipped,
    a_replaced_leader_fires_nothing,
    no_stale_lock_verb_succeeds,
    no_lock_is_taken_before_it_lapses,
    no_lock_outlives_its_lease,
)
