"""A wrong value is refused at the call, before any statement reaches the database."""

import math
from datetime import datetime, timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_alkstore import (
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidSpec,
    ReservedName,
    enqueue_tx,
    get_job,
    lock,
    outbox,
    outbox_enqueue_tx,
    queue,
    run_schedules,
    schedule,
    unschedule,
)

from .factories import JobFactory

RESERVED = "__alkstore_outbox:receipts"
EVERY = "@every 1h"

NAMES = {
    "queue": lambda name: queue(name),
    "enqueue_tx": lambda name: enqueue_tx(name, None),
    "outbox": lambda name: outbox(name),
    "outbox_enqueue_tx": lambda name: outbox_enqueue_tx(name, None),
    "lock": lambda name: lock(name),
    "schedule": lambda name: schedule(name, EVERY, "reports"),
    "schedule's queue": lambda name: schedule("nightly", EVERY, name),
    "unschedule": lambda name: unschedule(name),
}

ENQUEUES = {
    "queue.enqueue": lambda payload, **options: queue("x").enqueue(payload, **options),
    "queue.enqueue_tx": lambda payload, **options: queue("x").enqueue_tx(payload, **options),
    "queue.enqueue_many": lambda payload, **options: queue("x").enqueue_many([payload], **options),
    "enqueue_tx": lambda payload, **options: enqueue_tx("x", payload, **options),
    "outbox.enqueue": lambda payload, **options: outbox("x").enqueue(payload, **options),
    "outbox.enqueue_tx": lambda payload, **options: outbox("x").enqueue_tx(payload, **options),
    "outbox.enqueue_many": lambda payload, **options: outbox("x").enqueue_many(
        [payload], **options
    ),
    "outbox_enqueue_tx": lambda payload, **options: outbox_enqueue_tx("x", payload, **options),
}
SCHEDULE = {"schedule": lambda payload, **options: schedule("a", EVERY, "x", payload, **options)}

OPTIONS = {
    "priority": {"priority": "5"},
    "max_attempts": {"max_attempts": 0},
    "visibility_timeout": {"visibility_timeout": 0},
    "backoff": {"backoff": None},
    "expires_in": {"expires_in": 10**12},
}
STARTS = {
    "delay": {"delay": -1},
    "run_at": {"run_at": datetime(2025, 1, 1)},
    "delay and run_at": {"delay": 0, "run_at": datetime(2025, 1, 1)},
}

REFUSED = {
    "spec": (InvalidSpec, lambda: schedule("a", "@every 0s", "x")),
    "spec of another type": (InvalidSpec, lambda: schedule("a", timedelta(hours=1), "x")),
    "payloads that are text": (InvalidOption, lambda: queue("x").enqueue_many("abc")),
    "payloads that are a dict": (InvalidOption, lambda: queue("x").enqueue_many({"a": 1})),
    "payloads that are None": (InvalidOption, lambda: queue("x").enqueue_many(None)),
    "the last of many payloads": (InvalidPayload, lambda: queue("x").enqueue_many([1, math.nan])),
    "options of no payloads": (InvalidOption, lambda: queue("x").enqueue_many([], priority="5")),
    "worker id": (InvalidOption, lambda: queue("x").claim("")),
    "worker id of another type": (InvalidOption, lambda: queue("x").claim(5)),
    "worker id of a batch": (InvalidOption, lambda: queue("x").claim_batch(None, 5)),
    "no jobs": (InvalidOption, lambda: queue("x").claim_batch("w", 0)),
    "too many jobs": (InvalidOption, lambda: queue("x").claim_batch("w", 1_001)),
    "True jobs": (InvalidOption, lambda: queue("x").claim_batch("w", True)),
    "ids for claims": (InvalidOption, lambda: queue("x").ack_batch([1, 2])),
    "None for claims": (InvalidOption, lambda: queue("x").ack_batch(None)),
    "job id as text": (InvalidOption, lambda: get_job("1")),
    "job id beyond the column": (InvalidOption, lambda: get_job(2**63)),
    "job id to cancel": (InvalidOption, lambda: queue("x").cancel(None)),
    "delivery": (InvalidOption, lambda: outbox("x").run_once("w", None)),
    "delivery's worker id": (InvalidOption, lambda: outbox("x").run_once(None, print)),
    "ttl 0": (InvalidOption, lambda: lock("x", 0)),
    "ttl negative": (InvalidOption, lambda: lock("x", -1)),
    "ttl giant": (InvalidOption, lambda: lock("x", 10**12)),
    "ttl None": (InvalidOption, lambda: lock("x", None)),
    "ttl to renew": (InvalidOption, lambda: lock("x").renew(0)),
    "alias of a queue": (InvalidOption, lambda: queue("x", using="nowhere").enqueue(None)),
    "alias of an outbox": (InvalidOption, lambda: outbox("x", using="nowhere").enqueue(None)),
    "alias of a lock": (InvalidOption, lambda: lock("x", using="nowhere").acquire()),
    "alias of a schedule": (InvalidOption, lambda: schedule("a", EVERY, "x", using="nowhere")),
    "alias to unschedule": (InvalidOption, lambda: unschedule("a", using="nowhere")),
    "alias of a job": (InvalidOption, lambda: get_job(1, using=5)),
    "alias to schedule on": (InvalidOption, lambda: run_schedules(using="nowhere")),
    "stop": (InvalidOption, lambda: run_schedules("stop")),
}

pytestmark = pytest.mark.django_db
SENTENCE = "^expected .+ to be .+, got .+"


def table(names, rows):
    return pytest.mark.parametrize(names, rows.values(), ids=rows.keys())


@table("call", NAMES)
@pytest.mark.parametrize("name", ["", "a b", "n" * 129, b"a", None, 7], ids=repr)
def test_a_wrong_name_is_refused_first(call, name, statements):
    with pytest.raises(InvalidName, match=SENTENCE) as caught:
        call(name)
    assert type(caught.value) is InvalidName
    assert len(statements) == 0


@table("call", NAMES)
@pytest.mark.parametrize("name", [RESERVED, "__alkstore_scheduler", "__alkstore_"])
def test_a_reserved_name_is_refused_first(call, name, statements):
    with pytest.raises(ReservedName, match=SENTENCE):
        call(name)
    assert len(statements) == 0


@table("call", ENQUEUES | SCHEDULE)
@pytest.mark.parametrize("payload", [math.nan, {1: 2}, "\0", object()], ids=repr)
def test_a_wrong_payload_is_refused_first(call, payload, statements):
    with pytest.raises(InvalidPayload, match=SENTENCE):
        call(payload)
    assert len(statements) == 0


@table("call", ENQUEUES | SCHEDULE)
@table("options", OPTIONS)
def test_a_wrong_option_is_refused_first(call, options, statements):
    with pytest.raises(InvalidOption, match=f"^expected {next(iter(options))} to be .+, got .+"):
        call(None, **options)
    assert len(statements) == 0


@table("call", ENQUEUES)
@table("options", STARTS)
def test_a_wrong_start_is_refused_first(call, options, statements):
    with pytest.raises(InvalidOption, match="^expected .*(delay|run_at) .*to be .+, got .+"):
        call(None, **options)
    assert len(statements) == 0


@table("call", ENQUEUES | SCHEDULE)
@pytest.mark.parametrize("option", ["expire", "state", "using_"])
def test_an_unknown_option_is_refused_first(call, option, statements):
    with pytest.raises(TypeError, match="^expected an option to be one of .+, got .+"):
        call(None, **{option: 1})
    assert len(statements) == 0


@pytest.mark.parametrize("option", ["delay", "run_at"])
def test_a_schedule_says_by_its_spec_when_and_by_no_option(option, statements):
    with pytest.raises(TypeError, match="^expected an option to be one of .+, got .+"):
        schedule("a", EVERY, "x", **{option: 1})
    assert len(statements) == 0


@table(("error", "call"), REFUSED)
def test_any_other_wrong_value_is_refused_first(error, call, statements):
    with pytest.raises(error, match=SENTENCE):
        call()
    assert len(statements) == 0


@table("call", ENQUEUES)
def test_wrong_settings_are_refused_first(call, settings, statements):
    settings.ALKSTORE = {"QUEUE": {}}
    with pytest.raises(ImproperlyConfigured, match=SENTENCE):
        call(None)
    assert len(statements) == 0


@pytest.mark.parametrize("value", [-1, "5", math.nan, 10**12, True], ids=repr)
@pytest.mark.parametrize(
    "verb",
    [lambda job, value: job.retry(delay=value), lambda job, value: job.heartbeat(value)],
    ids=["retry", "heartbeat"],
)
def test_a_wrong_duration_leaves_the_claim_as_it_was(verb, value, statements):
    JobFactory(queue="x")
    job = queue("x").claim("w")
    sent = len(statements)
    with pytest.raises(InvalidOption, match=SENTENCE):
        verb(job, value)
    assert len(statements) == sent
    assert job.ack()
