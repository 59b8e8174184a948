"""Queues and claims: the handles that user code holds.

A claim is one worker's until somebody takes the job back; from then on every verb of the handle
changes nothing and returns False. A claim ends when it is taken back, not when the clock passes
its expiry: the late ack of a job that nobody took succeeds. Delivery is at least once: a job whose
worker dies between the work and the ack runs again.
"""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.utils import timezone

from . import conf, payloads, signals, sql, wakeups
from .backoff import Duration, retry_delay, seconds
from .counts import Tally
from .exceptions import (
    InvalidOption,
    PermanentError,
    RetryLater,
    TransactionRequired,
    expected,
)
from .failures import message_of, traceback_of
from .names import shown_name, valid_name
from .options import split_start, valid_worker_id, whole_number
from .surroundings import Surroundings

if TYPE_CHECKING:
    from .models import Job

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
REPAIR_SECONDS = 60.0
COMMIT_SECONDS = 5.0  # as long as most transactions take from an enqueue to their commit
BATCH_MAX = 1_000
_UNREAD = object()
Claims = dict[int, tuple[int, tuple]]  # by id: token and row


def queue(name: str, using: str | None = None) -> Queue:
    """The queue ``name``. ``using`` is a database alias; raises InvalidName or ReservedName."""
    return Queue(valid_name("queue", name), using)


def enqueue_tx(queue_name: str, payload: object, using: str | None = None, **options: Any) -> int:
    """Enqueue in the open transaction: the job exists exactly if that commits. See ``Queue``."""
    return queue(queue_name, using).enqueue_tx(payload, **options)


def get_job(job_id: int, using: str | None = None) -> Job | None:
    """The row of a job, or None once it is gone: an acked job is deleted unless retention is on."""
    job_id = whole_number("job_id", job_id, 0, 2**63 - 1)
    return apps.get_model("django_alkstore", "Job").objects.using(sql.write_alias(using)).filter(
        pk=job_id
    ).first()  # fmt: skip


class Queue:
    """A name and the database it is in; jobs need no declaration.

    The options of every enqueue: ``priority`` (larger first), ``max_attempts``,
    ``visibility_timeout`` (seconds a claim holds), ``backoff`` (seconds before the first retry,
    doubled for each next), ``expires_in`` (seconds from the instant it may first run, after which
    it is not started), and ``delay`` or ``run_at``. Wrong values raise InvalidPayload or
    InvalidOption, an unknown option TypeError, before any statement.
    """

    def __init__(self, name: str, using: str | None = None) -> None:
        self.name = name
        self.using = using
        self._swept = float("-inf")
        self._repaired = float("-inf")
        self._has_more_due = False
        # For who comes back every moment: when it last looked at everything and left nothing.
        # None: each claim is to look at everything.
        self.looked_at: float | None = None
        self.tally: Tally | None = None  # a worker's, which counts what is done to claimed jobs

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown_name(self.name)}>"

    @property
    def engine(self) -> sql.Engine:
        return sql.engine(self.using)

    def enqueue(self, payload: object, **options: Any) -> int:
        """Enqueue a job and return its id; joins an open transaction, else commits by itself."""
        return self._insert(self.engine, self._new_job(payloads.encode(payload), options))

    def enqueue_tx(self, payload: object, **options: Any) -> int:
        """Enqueue in the open ``transaction.atomic()``; raises TransactionRequired without one."""
        job = self._new_job(payloads.encode(payload), options)
        engine = self.engine
        if not sql.in_atomic(engine.alias):
            wanted = f"inside transaction.atomic() on the alias {engine.alias!r}"
            raise TransactionRequired(f"expected enqueue_tx to be called {wanted}, got no block")
        return self._insert(engine, job)

    def enqueue_many(self, payloads_: Iterable[object], /, **options: Any) -> list[int]:
        """Enqueue a job for each payload, all or none, and return the ids in their order."""
        if isinstance(payloads_, (str, bytes, dict)) or not isinstance(payloads_, Iterable):
            raise InvalidOption(expected("payloads", "an iterable of payloads", payloads_))
        texts = [payloads.encode(item, f"payloads[{n}]") for n, item in enumerate(payloads_)]
        job = self._new_job("null", options)
        if not texts:
            return []
        engine = self.engine
        return engine.insert_many(job, texts, wakeups.announcement(engine.alias, self.name))

    def _insert(self, engine: sql.Engine, job: sql.NewJob) -> int:
        return engine.insert(job, wakeups.announcement(engine.alias, self.name))

    def _new_job(self, payload: str, given: dict[str, Any]) -> sql.NewJob:
        options = conf.current().of(self.name).options
        if not given:
            return sql.NewJob(self.name, payload, options)
        start, rest = split_start(given)
        return sql.NewJob(self.name, payload, options.over(rest), start)

    def claim(self, worker_id: str) -> ClaimedJob | None:
        """Claim the next job: by priority, then run_at, then id. None if none is ready."""
        jobs = self.claim_batch(worker_id, 1)
        return jobs[0] if jobs else None

    def claim_batch(self, worker_id: str, n: int) -> list[ClaimedJob]:
        """Claim up to ``n`` jobs (at most 1,000), in claim order.

        They share one claim token, but for those that a sweep brought in between.
        """
        worker_id = valid_worker_id(worker_id)
        n = whole_number("n", n, 1, BATCH_MAX)
        engine = self.engine
        lately = self.lately()
        if lately is None:
            claims = self._claim_of_all(engine, worker_id, n)
        else:
            claims = self._claim_of_late(engine, worker_id, n, lately)
        self.count("claimed", len(claims))
        return [
            ClaimedJob(self.name, engine, worker_id, token, row, self.tally)
            for token, row in sorted(claims.values(), key=lambda claim: sql.claim_order(claim[1]))
        ]

    def lately(self) -> float | None:
        """How many seconds back the next claim, or a peek, has to look; None: at everything.

        What is ready, and was to run earlier, waits for the next look at everything: what was
        committed later than that, or what another worker has given back.
        """
        if self.looked_at is None:
            return None
        seconds = time.monotonic() - self.looked_at
        return seconds + COMMIT_SECONDS if seconds < SWEEP_SECONDS else None

    def _claim_of_all(self, engine: sql.Engine, worker_id: str, n: int) -> Claims:
        began = time.monotonic()
        swept = self._sweep_if_due(engine)
        claims = self._claim(engine, worker_id, n)
        if len(claims) < n and not swept and self._sweep_all(engine):
            # After a long pause the sweep takes back even what was claimed just now. So it is
            # claimed with another token, and only as its last claim in here.
            claims |= self._claim(engine, worker_id, n - len(claims))
        if self.looked_at is not None and len(claims) < n and not self._has_more_due:
            self.looked_at = began
        return claims

    def _claim_of_late(self, engine: sql.Engine, worker_id: str, n: int, lately: float) -> Claims:
        claims = self._claim(engine, worker_id, n, lately)
        if len(claims) < n and self._sweep(engine, lately).readied:
            claims |= self._claim(engine, worker_id, n - len(claims))  # a lapsed one is older
        return claims

    def _claim(
        self, engine: sql.Engine, worker_id: str, n: int, lately: float | None = None
    ) -> Claims:
        """Of each job claimed: its token and its row."""
        token = secrets.randbits(63)
        rows = engine.claim(self.name, worker_id, token, n, lately)
        return {row[0]: (token, row) for row in rows}

    def count(self, figure: str, count: int) -> None:
        """Add to the worker's tally, if the queue is a worker's."""
        if self.tally is not None:
            self.tally.add(self.name, figure, count)

    def _sweep_if_due(self, engine: sql.Engine) -> bool:
        """Sweep once a second, one bounded step; whether nothing more is left to sweep."""
        now = time.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return False
        if now - self._repaired >= REPAIR_SECONDS:
            self._repair(engine)
            self._repaired = now
        swept = self._sweep(engine)
        if not swept.full:
            self._swept = now
        return not swept.full

    def _sweep_all(self, engine: sql.Engine) -> int:
        """Sweep until nothing is left; how many jobs became ready."""
        readied = 0
        while True:
            swept = self._sweep(engine)
            readied += swept.readied
            if readied or not swept.full:
                return readied

    def _sweep(self, engine: sql.Engine, lately: float | None = None) -> sql.Swept:
        swept = engine.sweep(self.name, lately)
        self._has_more_due = swept.full
        if swept.died:
            self._note_deaths(swept.dead)
        return swept

    def _note_deaths(self, job_ids: Sequence[int]) -> None:
        error = "expired, or its last claim lapsed"
        logger.warning("%d jobs of %s died: expired, or their last claim lapsed",
                       len(job_ids), shown_name(self.name),
                       extra={"queue": self.name, "count": len(job_ids)})  # fmt: skip
        self.count("died", len(job_ids))
        for id in job_ids:
            signals.send(signals.job_dead, queue=self.name, job_id=id, attempts=None, error=error)

    def _repair(self, engine: sql.Engine) -> None:
        if repaired := engine.repair(self.name):
            logger.error("%d live jobs of %s had no due_at and were made due",
                         repaired, shown_name(self.name),
                         extra={"queue": self.name, "count": repaired})  # fmt: skip

    def ack_batch(self, claimed_jobs: Iterable[ClaimedJob]) -> int:
        """Finish claimed jobs of this queue; how many were still ours."""
        engine = self.engine
        ids_by_token = self._ids_by_token(claimed_jobs)
        return sum(self._ack(engine, token, ids) for token, ids in ids_by_token.items())

    def _ack(self, engine: sql.Engine, token: int, ids: list[int]) -> int:
        acked = self._finish(engine, token, ids)
        self.count("acked", acked)
        return acked

    def note_lost(self, jobs: Sequence[ClaimedJob], lost: int) -> None:
        """So many write-backs of these jobs came too late."""
        self.count("lost", lost)
        ids = [job.id for job in jobs]
        signals.send(signals.lease_lost, queue=self.name, job_ids=ids, lost=lost)

    def release_batch(self, claimed_jobs: Iterable[ClaimedJob]) -> int:
        """Give unstarted jobs of this queue back with their attempt; how many were still ours."""
        engine = self.engine
        ids_by_token = self._ids_by_token(claimed_jobs)
        return sum(engine.release(token, ids) for token, ids in ids_by_token.items())

    def _finish(self, engine: sql.Engine, token: int, ids: list[int]) -> int:
        if conf.current().of(self.name).retention:
            return engine.keep(token, ids)
        return engine.ack(token, ids)

    def _ids_by_token(self, claimed_jobs: Iterable[ClaimedJob]) -> dict[int, list[int]]:
        """Of those that are of this queue: another's cannot be reached through it."""
        if not isinstance(claimed_jobs, Iterable):
            wanted = "an iterable of ClaimedJobs"
            raise InvalidOption(expected("claimed_jobs", wanted, claimed_jobs))
        ids: dict[int, list[int]] = defaultdict(list)
        for job in claimed_jobs:
            if not isinstance(job, ClaimedJob):
                raise InvalidOption(expected("claimed_jobs", "ClaimedJobs", job))
            if job.queue == self.name:
                ids[job.claim_token].append(job.id)
        return ids

    def cancel(self, job_id: int) -> bool:
        """Let a job that waits die as cancelled; False if it is claimed, finished or elsewhere."""
        return self.engine.cancel(self.name, whole_number("job_id", job_id, 0, 2**63 - 1))


class ClaimedJob:
    """One job, ours until it is taken back. The verbs return whether it still was ours."""

    __slots__ = (
        "_created",
        "_engine",
        "_lapses",
        "_payload",
        "_scheduled",
        "_tally",
        "_text",
        "attempts",
        "backoff",
        "claim_token",
        "id",
        "lost",
        "max_attempts",
        "queue",
        "schedule",
        "settled",
        "visibility_timeout",
        "worker_id",
    )  # fmt: skip

    def __init__(
        self,
        queue: str,
        engine: sql.Engine,
        worker_id: str,
        token: int,
        row: tuple,
        tally: Tally | None = None,
    ) -> None:
        self.queue = queue
        self.worker_id = worker_id
        self.claim_token = token
        (self.id, self._text, self.attempts, self.max_attempts, self.visibility_timeout,
         self.backoff, self._lapses, self._created, self.schedule, self._scheduled,
         *_) = row  # fmt: skip
        self._payload: Any = _UNREAD
        self.settled = False  # whether a verb of this handle has ended the claim
        self.lost = False  # whether a verb of this handle found that somebody has taken the job
        self._engine = engine
        self._tally = tally

    def __repr__(self) -> str:
        return f"<ClaimedJob {self.id} of {shown_name(self.queue)}>"

    @property
    def payload(self) -> Any:
        """What was enqueued. A change to it stays here. Raises InvalidPayload if it is no JSON."""
        if self._payload is _UNREAD:
            self._payload = payloads.decode(self._text)
        return self._payload

    @property
    def idempotency_key(self) -> str:
        """The same on every attempt, and unique in the life of the database."""
        return f"{self.queue}:{self.id}"

    @property
    def claim_expires_at(self) -> datetime:
        return self._shown(self._lapses)

    @property
    def created_at(self) -> datetime:
        return self._shown(self._created)

    @property
    def scheduled_for(self) -> datetime | None:
        """The boundary of the schedule that fired this job."""
        return self._shown(self._scheduled)

    def _shown(self, value: Any) -> datetime | None:
        instant = self._engine.read(value)
        if instant is None or settings.USE_TZ:
            return instant
        return timezone.make_naive(instant, timezone.get_default_timezone())

    def ack(self) -> bool:
        """The work is done: the row is deleted, or kept as done where retention is on."""
        acked = Queue(self.queue)._finish(self._engine, self.claim_token, [self.id])
        return self._settle("acked", acked)

    def fail(self, error: object = None) -> bool:
        """Let the job die now; ``error`` (an exception or text) is the reason on the row."""
        message, traceback = message_of(error) or None, traceback_of(error)
        died = self._engine.fail(self.id, self.claim_token, message, traceback)
        if self._settle("died", died):
            signals.send(signals.job_dead, queue=self.queue, job_id=self.id,
                         attempts=self.attempts, error=message)  # fmt: skip
        return died

    def retry(self, error: object = None, delay: Duration | None = None) -> bool:
        """Run the job again after ``delay``, or on the retry curve; dead if attempts are used up.

        Raises InvalidOption for a wrong ``delay``.
        """
        if delay is None:
            delay = retry_delay(self.backoff, self.attempts, conf.current().BACKOFF_MAX)
        wait = seconds("delay", delay)
        if self.attempts >= self.max_attempts:
            return self.fail(error)
        message, traceback = message_of(error), traceback_of(error)
        retried = self._engine.retry(self.id, self.claim_token, wait, message, traceback)
        if self._settle("retried", retried):
            signals.send(signals.job_retried, queue=self.queue, job_id=self.id,
                         attempts=self.attempts, error=message, delay=wait)  # fmt: skip
        return retried

    def heartbeat(self, extend: Duration | None = None) -> bool:
        """Hold the claim for ``extend`` from now (default: the job's visibility timeout)."""
        if extend is None:
            extend = self.visibility_timeout
        wait = seconds("extend", extend, above_zero=True)
        lapses = self._engine.heartbeat(self.id, self.claim_token, wait)
        if lapses is None:
            self._lose()
            return False
        self._lapses = lapses
        return True

    def release(self) -> bool:
        """Give the job back unstarted, with its attempt."""
        return self._settle(None, self._engine.release(self.claim_token, [self.id]))

    def _settle(self, figure: str | None, matched: int | bool) -> bool:
        """``figure``: as what it counts, if it does."""
        if not matched:
            self._lose()
            return False
        self.settled = True
        if self._tally is not None and figure is not None:
            self._tally.add(self.queue, figure, 1)
        return True

    def _lose(self) -> None:
        """Somebody else has taken the job: say so once."""
        if self.settled or self.lost:
            return
        self.lost = True
        if self._tally is not None:
            self._tally.add(self.queue, "lost", 1)
        signals.send(signals.lease_lost, queue=self.queue, job_ids=[self.id], lost=1)


class Outcome(NamedTuple):
    """What came of a job that was handed over: ``error`` is what was raised, or None."""

    job: ClaimedJob
    error: BaseException | None = None

    def record(self) -> bool:
        """Write it down; False if the claim had been taken back, so that the job runs again.

        Returned: acked. PermanentError: dead. RetryLater: again after its delay. Anything else
        that was raised is a failure: retried on the curve, dead when attempts are used up.
        """
        if self.error is None:
            kept = self.job.ack()
        elif isinstance(self.error, PermanentError):
            kept = self.job.fail(self.error)
        else:
            kept = self.job.retry(self.error, delay=_asked_delay(self.error))
        if self.error is not None:
            self._log()
        if not kept and not self.job.settled:
            logger.warning("%r ended, but its claim had been taken back", self.job,
                           extra=log_keys(self.job))  # fmt: skip
        return kept

    def _log(self) -> None:
        job, error = self.job, self.error
        dead = isinstance(error, PermanentError) or job.attempts >= job.max_attempts
        fate = "is dead" if dead else f"failed on attempt {job.attempts} of {job.max_attempts}"
        asked = isinstance(error, (PermanentError, RetryLater))
        level = logging.ERROR if dead else logging.WARNING
        logger.log(level, "%r %s: %s", job, fate, message_of(error),
                   exc_info=None if asked else error, extra=log_keys(job))  # fmt: skip


def log_keys(job: ClaimedJob) -> dict[str, object]:
    """What every log record about the job has as ``extra=``."""
    return {
        "queue": job.queue, "job_id": job.id, "attempts": job.attempts,
        "max_attempts": job.max_attempts, "worker_id": job.worker_id, "schedule": job.schedule,
    }  # fmt: skip


def hand_over(
    job: ClaimedJob, call: Callable[[ClaimedJob], object], surroundings: Surroundings
) -> Outcome:
    """Run ``call(job)``; whatever it raises, SystemExit too, and leaves behind stays in here."""
    try:
        _ = job.payload  # one that is no JSON is a failure of the job, not of the worker
        surroundings.call(call, job)
    except BaseException as exc:
        return Outcome(job, exc)
    return Outcome(job)


def process(job: ClaimedJob, call: Callable[[ClaimedJob], object]) -> None:
    """Hand ``job`` to ``call`` and record what came of it. A real Ctrl-C is raised again."""
    outcome = hand_over(job, call, Surroundings())
    outcome.record()
    if isinstance(outcome.error, KeyboardInterrupt) and _ctrl_c_raises():
        raise outcome.error


def _asked_delay(exc: BaseException) -> float | None:
    if not isinstance(exc, RetryLater):
        return None
    try:
        return seconds("delay", exc.delay)
    except InvalidOption:
        return None


def _ctrl_c_raises() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
