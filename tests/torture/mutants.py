"""Planted faults: each is one mistake that the package could have, and what must come of it.

For each the rule that it breaks, and the scenario that shows it; the same scenario breaks no rule
where the fault is not planted.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace

from django.db import connections, transaction

from django_alkstore import queues, scheduler, specs, sql
from django_alkstore.queues import ClaimedJob, Outcome
from django_alkstore.scheduler import Scheduler
from django_alkstore.surroundings import Surroundings, drop

from . import rules, scenarios
from .recording import swapped

MUTANT = "TORTURE_MUTANT"  # the environment variable that plants one in every process of a run
EVERYWHERE = ("sqlite", "postgresql", "mysql")


@dataclass(frozen=True)
class Mutant:
    """``plant`` is a context manager; ``on``: the databases where the fault can be made."""

    plant: Callable
    rule: Callable
    scenario: Callable
    on: tuple = EVERYWHERE


@contextmanager
def planted(name):
    """The fault is at work in this process inside the block."""
    with MUTANTS[name].plant():
        yield


def listed():
    """A line for each, to print: its name, the rule that it breaks, and where it can be made."""
    width = max(map(len, MUTANTS))
    for name, mutant in MUTANTS.items():
        where = "" if mutant.on == EVERYWHERE else f"  ({', '.join(mutant.on)})"
        yield f"{name:<{width}}  {mutant.rule.__name__.replace('_', ' ')}{where}"


def reworded(*changes):
    """A fault that is another text: triples of a statement's name, words of it, and others."""

    @contextmanager
    def plant():
        with ExitStack() as stack:
            for name, words, others in changes:
                text = getattr(sql, name)
                assert words in text, f"expected {name} to have {words!r}"
                stack.enter_context(swapped(sql, name, text.replace(words, others)))
            yield

    return plant


def replaced(owner, name, value):
    """A fault that is another function."""
    return lambda: swapped(owner, name, value)


def both(*plants):
    @contextmanager
    def plant():
        with ExitStack() as stack:
            for one in plants:
                stack.enter_context(one())
            yield

    return plant


# -- other functions ------------------------------------------------------------------------------


def move_unlocked(self, pick, change, before, after, params):
    """Look, then change: whoever looked at the same time changes as well."""
    rows = self.query(pick.format(picked=before), params)
    if rows:
        ids = ", ".join(str(row[0]) for row in rows)
        self.execute(f"{change} WHERE id IN ({ids})", params)
    return rows


_claim, _insert = sql.Engine.claim, sql.Engine.insert
_take_lock, _renew_lock = sql.Engine.take_lock, sql.Engine.renew_lock


def claim_and_ack(self, queue, worker_id, token, limit, lately=None):
    rows = _claim(self, queue, worker_id, token, limit, lately)
    self.ack(token, [row[0] for row in rows])
    return rows


def claim_and_keep(self, queue, worker_id, token, limit, lately=None):
    rows = _claim(self, queue, worker_id, token, limit, lately)
    self.keep(token, [row[0] for row in rows])
    return rows


def insert_and_commit(self, job, besides=""):
    id = _insert(self, job, besides)
    self.connection.connection.commit()
    return id


def insert_elsewhere(self, job, besides=""):
    from ..processes import in_threads

    return in_threads(lambda: _insert(self, job, besides))[0]


def insert_on_commit(self, job, besides=""):
    transaction.on_commit(lambda: _insert(self, job, besides), using=self.alias)
    return 0


def take_for_long(self, name, owner, ttl):
    return _take_lock(self, name, owner, 1000 * ttl)


def renew_for_long(self, name, owner, token, ttl):
    return _renew_lock(self, name, owner, token, 1000 * ttl)


def hand_over_but_no_exit(job, call, surroundings):
    """Only what is an Exception stays in here."""
    try:
        surroundings.call(call, job)
    except Exception as exc:
        return Outcome(job, exc)
    return Outcome(job)


def tick_without_renewing(self):
    return self.tick()


def restore_with_a_commit(self):
    for connection in connections.all(initialized_only=True):
        connection.connection.commit()
        drop(connection)


def due_with_drift(self, boundary, now, limit, plain=specs.Every.due):
    due = plain(self, boundary, now, limit)
    return replace(due, next=now + self.interval)


def retry_for_ever(self, error=None, delay=None):
    return self._engine.retry(self.id, self.claim_token, 0, "again", None)


NO_TRANSACTION = SimpleNamespace(atomic=lambda alias: ExitStack())
ONE_TOKEN = SimpleNamespace(randbits=lambda bits: 7)
FENCE = " AND claim_token = %(token)s"
BY_OWNER = " AND owner = %(owner)s AND token = %(token)s"
NO_LIMIT = "attempts >= max_attempts"


def unfenced(*names):
    return reworded(*((name, FENCE, "") for name in names))


MUTANTS = {
    # one owner
    "ack_unfenced": Mutant(
        unfenced("ACK"), rules.no_stale_verb_succeeds, scenarios.stale_ack),
    "keep_unfenced": Mutant(
        unfenced("KEEP"), rules.no_stale_verb_succeeds, scenarios.stale_keep),
    "fail_unfenced": Mutant(
        unfenced("FAIL"), rules.no_stale_verb_succeeds, scenarios.stale_fail),
    "retry_unfenced": Mutant(
        unfenced("RETRY_NOW"), rules.no_stale_verb_succeeds, scenarios.stale_retry),
    "late_retry_unfenced": Mutant(
        unfenced("RETRY_LATER"), rules.no_stale_verb_succeeds, scenarios.stale_late_retry),
    "release_unfenced": Mutant(
        unfenced("RELEASE"), rules.no_stale_verb_succeeds, scenarios.stale_release),
    "heartbeat_unfenced": Mutant(
        unfenced("HEARTBEAT", "LAPSES"), rules.no_stale_verb_succeeds, scenarios.stale_heartbeat),
    "one_token_for_all": Mutant(
        replaced(queues, "secrets", ONE_TOKEN), rules.no_stale_verb_succeeds, scenarios.stale_ack),
    "claim_in_two_steps": Mutant(
        both(*(replaced(one, "move", move_unlocked) for one in (sql.Returning, sql.TwoStep))),
        rules.claims_do_not_overlap, scenarios.two_claim_at_once),
    "claim_without_locks": Mutant(
        replaced(sql.MySQL, "skip_locked", ""),
        rules.claims_do_not_overlap, scenarios.two_claim_at_once, on=("mysql",)),
    "sweep_takes_held_claims": Mutant(
        reworded(("DUE_JOBS", "due_at <= {now}", "due_at IS NOT NULL"),
                 ("SWEEP_PICK", "due_at <= {now}", "due_at IS NOT NULL")),
        rules.claims_do_not_overlap, scenarios.another_claims),
    "heartbeat_that_holds_nothing": Mutant(
        reworded(("HEARTBEAT", "{extended}", "{now}")),
        rules.claims_do_not_overlap, scenarios.another_claims_after_a_beat),
    "early_retry": Mutant(
        reworded(("RETRY_LATER", "state = 'scheduled'", "state = 'ready'")),
        rules.nothing_runs_before_its_time, scenarios.it_is_retried_later),
    "sweep_before_the_time": Mutant(
        reworded(("DUE_JOBS", "due_at <= {now}", "(due_at <= {now} OR state = 'scheduled')"),
                 ("SWEEP_PICK", "due_at <= {now}", "(due_at <= {now} OR state = 'scheduled')")),
        rules.nothing_runs_before_its_time, scenarios.it_is_delayed),
    "acked_jobs_come_back": Mutant(
        reworded(("ACK", "DELETE FROM django_alkstore_job",
                  "UPDATE django_alkstore_job SET state = 'ready', claim_token = NULL")),
        rules.what_has_ended_stays_ended, scenarios.one_job_is_done),
    # attempts
    "sweep_without_attempts": Mutant(
        reworded(("SWEEP", NO_LIMIT, "FALSE"), ("SWEPT_STATE", NO_LIMIT, "FALSE")),
        rules.attempts_stay_within_max, scenarios.claims_lapse_in_turn),
    "retry_without_attempts": Mutant(
        replaced(ClaimedJob, "retry", retry_for_ever),
        rules.attempts_stay_within_max, scenarios.it_is_retried_in_turn),
    "retry_gives_the_attempt_back": Mutant(
        reworded(("RETRY_NOW", "SET state", "SET attempts = attempts - 1, state")),
        rules.attempts_stay_within_max, scenarios.it_is_retried_in_turn),
    # nothing is lost, nothing leaks
    "ack_before_delivery": Mutant(
        replaced(sql.Engine, "claim", claim_and_ack),
        rules.every_committed_job_is_delivered_or_dead, scenarios.a_delivery_fails_once),
    "keep_before_delivery": Mutant(
        replaced(sql.Engine, "claim", claim_and_keep),
        rules.every_committed_job_is_delivered_or_dead, scenarios.a_delivery_fails_once),
    "enqueue_on_commit": Mutant(
        replaced(sql.Engine, "insert", insert_on_commit),
        rules.every_committed_job_is_delivered_or_dead, scenarios.another_hook_fails),
    "death_without_reason": Mutant(
        reworded(("FAIL", "COALESCE(%(error)s, last_error, 'failed without a reason')", "NULL")),
        rules.every_committed_job_is_delivered_or_dead, scenarios.it_is_given_up),
    "enqueue_commits": Mutant(
        replaced(sql.Engine, "insert", insert_and_commit),
        rules.nothing_rolled_back_is_seen, scenarios.it_rolls_back),
    "enqueue_on_its_own_connection": Mutant(
        replaced(sql.Engine, "insert", insert_elsewhere),
        rules.nothing_rolled_back_is_seen, scenarios.it_rolls_back, on=("postgresql", "mysql")),
    "left_open_is_committed": Mutant(
        replaced(Surroundings, "_restore", restore_with_a_commit),
        rules.nothing_rolled_back_is_seen, scenarios.a_transaction_is_left_open),
    "lapsed_claims_are_left": Mutant(
        reworded(("DUE_JOBS", "due_at <= {now}", "due_at <= {now} AND state <> 'running'"),
                 ("SWEEP_PICK", "due_at <= {now}", "due_at <= {now} AND state <> 'running'")),
        rules.every_live_job_comes_to_an_end, scenarios.claims_lapse_in_turn),
    "exit_of_a_delivery_ends_its_worker": Mutant(
        replaced(queues, "hand_over", hand_over_but_no_exit),
        rules.processes_end_only_when_told, scenarios.a_delivery_exits),
    "a_key_for_each_attempt": Mutant(
        replaced(ClaimedJob, "idempotency_key",
                 property(lambda job: f"{job.queue}:{job.id}:{job.attempts}")),
        rules.keys_are_stable, scenarios.a_delivery_fails_once),
    # boundaries
    "tick_in_two_transactions": Mutant(
        replaced(scheduler, "transaction", NO_TRANSACTION),
        rules.each_boundary_has_one_fire_and_one_job, scenarios.a_tick_is_cut_off),
    "ledger_unread": Mutant(
        replaced(sql.Engine, "fired", lambda *args: set()),
        rules.missing_boundaries_are_recorded_as_skipped, scenarios.a_schedule_is_set_back),
    "skips_unrecorded": Mutant(
        replaced(Scheduler, "_record_skipped", lambda *args: None),
        rules.missing_boundaries_are_recorded_as_skipped, scenarios.a_schedule_is_far_behind),
    "boundaries_drift": Mutant(
        replaced(specs.Every, "due", due_with_drift),
        rules.missing_boundaries_are_recorded_as_skipped, scenarios.a_schedule_is_far_behind),
    "lapsed_lease_is_never_free": Mutant(
        reworded(("LOCK_FREE", "expires_at <= {now}", "FALSE"),
                 ("LOCK_PICK", "expires_at <= {now}", "FALSE")),
        rules.missing_boundaries_are_recorded_as_skipped, scenarios.a_leader_dies),
    "tick_without_renewing": Mutant(
        replaced(Scheduler, "_renew_and_tick", tick_without_renewing),
        rules.a_replaced_leader_fires_nothing, scenarios.a_replaced_leader_goes_on),
    # locks
    "renewal_by_name": Mutant(
        reworded(("LOCK_RENEW", BY_OWNER, "")),
        rules.no_stale_lock_verb_succeeds, scenarios.a_stale_holder_renews),
    "lock_release_by_name": Mutant(
        reworded(("LOCK_RELEASE", BY_OWNER, "")),
        rules.no_stale_lock_verb_succeeds, scenarios.a_stale_holder_releases),
    "lock_taken_while_held": Mutant(
        reworded(("LOCK_FREE", " AND expires_at <= {now}", ""),
                 ("LOCK_PICK", " AND expires_at <= {now}", "")),
        rules.no_lock_is_taken_before_it_lapses, scenarios.another_takes_the_lock),
    "lock_token_that_stays": Mutant(
        reworded(("LOCK_TAKE", "token = token + 1", "token = token")),
        rules.no_lock_is_taken_before_it_lapses, scenarios.a_lock_is_taken_in_turn),
    "lock_for_too_long": Mutant(
        replaced(sql.Engine, "take_lock", take_for_long),
        rules.no_lock_outlives_its_lease, scenarios.a_holder_dies),
    "renewal_for_too_long": Mutant(
        replaced(sql.Engine, "renew_lock", renew_for_long),
        rules.no_lock_outlives_its_lease, scenarios.a_holder_renews_and_dies),
}  # fmt: skip
