import math
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_alkstore import get_job, outbox, queue
from django_alkstore.conf import OUTBOX_DEFAULTS, QUEUE_DEFAULTS, QueueSettings, current, read
from django_alkstore.names import backing_queue
from django_alkstore.timetables import plan

NO_DURATION = [None, "10", b"10", True, Decimal(10), -1, math.nan, math.inf, 10**30, [10]]

HOURLY = {"spec": "@every 1h", "queue": "reports"}

REFUSED = {
    "ALKSTORE None": None,
    "ALKSTORE a list": [("NOTIFY", True)],
    "ALKSTORE text": "NOTIFY",
    "DATABASE unknown": {"DATABASE": "nowhere"},
    "DATABASE no text": {"DATABASE": 1},
    "DATABASE a list": {"DATABASE": ["default"]},
    "QUEUES None": {"QUEUES": None},
    "QUEUES a list": {"QUEUES": ["reports"]},
    "QUEUES text": {"QUEUES": "reports"},
    "queue None": {"QUEUES": {"reports": None}},
    "queue a number": {"QUEUES": {"reports": 5}},
    "queue a list": {"QUEUES": {"reports": ["backoff"]}},
    "name empty": {"QUEUES": {"": {}}},
    "name no text": {"QUEUES": {7: {}}},
    "name with a space": {"QUEUES": {"a b": {}}},
    "name reserved": {"QUEUES": {"__alkstore_outbox:receipts": {}}},
    "outbox name reserved": {"OUTBOXES": {"__alkstore_x": {}}},
    "outbox None": {"OUTBOXES": {"receipts": None}},
    "max_attempts 0": {"QUEUES": {"reports": {"max_attempts": 0}}},
    "max_attempts a float": {"QUEUES": {"reports": {"max_attempts": 3.0}}},
    "max_attempts None": {"QUEUES": {"reports": {"max_attempts": None}}},
    "visibility_timeout 0": {"OUTBOXES": {"receipts": {"visibility_timeout": 0}}},
    "backoff text": {"OUTBOXES": {"receipts": {"backoff": "5"}}},
    "priority too large": {"QUEUES": {"reports": {"priority": 2**31}}},
    "expires_in negative": {"QUEUES": {"reports": {"expires_in": -1}}},
    "retention negative": {"QUEUES": {"reports": {"retention": -1}}},
    "retention text": {"QUEUES": {"reports": {"retention": "1d"}}},
    "SCHEDULES None": {"SCHEDULES": None},
    "SCHEDULES a list": {"SCHEDULES": ["nightly"]},
    "schedule None": {"SCHEDULES": {"nightly": None}},
    "schedule a spec": {"SCHEDULES": {"nightly": "@every 1h"}},
    "schedule without a spec": {"SCHEDULES": {"nightly": {"queue": "reports"}}},
    "schedule without a queue": {"SCHEDULES": {"nightly": {"spec": "@every 1h"}}},
    "schedule name with a space": {"SCHEDULES": {"a b": HOURLY}},
    "schedule name reserved": {"SCHEDULES": {"__alkstore_x": HOURLY}},
    "schedule bare cron": {"SCHEDULES": {"nightly": {**HOURLY, "spec": "0 9 * * *"}}},
    "schedule impossible date": {"SCHEDULES": {"nightly": {**HOURLY, "spec": "@cron 0 0 30 2 *"}}},
    "schedule queue reserved": {"SCHEDULES": {"nightly": {**HOURLY, "queue": "__alkstore_x"}}},
    "schedule payload": {"SCHEDULES": {"nightly": {**HOURLY, "payload": {1, 2}}}},
    "schedule timezone": {"SCHEDULES": {"nightly": {**HOURLY, "timezone": "Nowhere/None"}}},
    "schedule catch_up": {"SCHEDULES": {"nightly": {**HOURLY, "catch_up": "some"}}},
    "schedule overlap": {"SCHEDULES": {"nightly": {**HOURLY, "overlap": None}}},
    "schedule jitter": {"SCHEDULES": {"nightly": {**HOURLY, "jitter": -1}}},
    "schedule max_fires": {"SCHEDULES": {"nightly": {**HOURLY, "max_fires": 0}}},
    "schedule max_attempts": {"SCHEDULES": {"nightly": {**HOURLY, "max_attempts": 0}}},
    "LEASE_SECONDS under 1": {"LEASE_SECONDS": 0.99},
    "POLL_INTERVAL 0": {"POLL_INTERVAL": 0},
    "NOTIFY 1": {"NOTIFY": 1},
    "NOTIFY None": {"NOTIFY": None},
    "NOTIFY text": {"NOTIFY": "True"},
    **{
        f"{key} {value!r}": {key: value}
        for key in ("BACKOFF_MAX", "LEASE_SECONDS", "POLL_INTERVAL")
        for value in NO_DURATION
    },
    **{
        f"{key} {value!r}": {key: value}
        for key in ("DEAD_RETENTION", "FIRE_RETENTION", "COUNT_RETENTION")
        for value in NO_DURATION[1:]
    },
    **{
        f"METRICS_TOKEN {value!r}": {"METRICS_TOKEN": value}
        for value in ("", "short", 16 * "\xe9", b"of 16 characters", 0, True)
    },
}

UNKNOWN = {
    "one letter less": ({"QUEUE": {}}, "QUEUES"),
    "two swapped": ({"BACKOFF_AMX": 1}, "BACKOFF_MAX"),
    "lower case": ({"queues": {}}, "QUEUES"),
    "like none": ({"ZZZ": 1}, ""),
    "no text": ({5: 1}, ""),
    "in a queue": ({"QUEUES": {"reports": {"max_retries": 1}}}, "max_attempts"),
    "in an outbox": ({"OUTBOXES": {"receipts": {"visibility_timeuot": 1}}}, "visibility_timeout"),
    "upper case": ({"QUEUES": {"reports": {"RETENTION": 1}}}, "retention"),
    "delay in a queue": ({"QUEUES": {"reports": {"delay": 1}}}, ""),
    "no schedules": ({"SCHEDULE": {}}, "SCHEDULES"),
    "in a schedule": ({"SCHEDULES": {"nightly": {**HOURLY, "time_zone": "UTC"}}}, "timezone"),
    "an option of its jobs": ({"SCHEDULES": {"nightly": {**HOURLY, "expires": 60}}}, "expires_in"),
    "delay in a schedule": ({"SCHEDULES": {"nightly": {**HOURLY, "delay": 1}}}, ""),
    "a schedule's name": ({"SCHEDULES": {"nightly": {**HOURLY, "name": "x"}}}, ""),
}


# -- reading --------------------------------------------------------------------------------------


def test_without_settings_the_defaults_hold():
    settings = read({})
    assert (settings.DATABASE, settings.NOTIFY) == (None, True)
    assert (settings.BACKOFF_MAX, settings.LEASE_SECONDS, settings.POLL_INTERVAL) == (3600, 10, 1)
    assert settings.of("reports") == QueueSettings(QUEUE_DEFAULTS)
    assert settings.of(backing_queue("receipts")) == QueueSettings(OUTBOX_DEFAULTS)


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_setting_is_refused(given):
    with pytest.raises(ImproperlyConfigured, match="expected .* to be .*, got "):
        read(given)


@pytest.mark.parametrize(("given", "nearest"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_key_is_refused_and_the_nearest_known_one_named(given, nearest):
    sentence = f"^expected each key of .* to be a known one, of which '{nearest}.*, got "
    with pytest.raises(ImproperlyConfigured, match=sentence):
        read(given)


def test_the_message_says_which_queue_is_set_wrong():
    with pytest.raises(ImproperlyConfigured, match=r"QUEUES\['b'\]: expected max_attempts to be"):
        read({"QUEUES": {"a": {"max_attempts": 1}, "b": {"max_attempts": 0}}})


def test_the_message_says_which_schedule_is_set_wrong():
    with pytest.raises(ImproperlyConfigured, match=r"SCHEDULES\['b'\]: expected jitter to be"):
        read({"SCHEDULES": {"a": HOURLY, "b": {**HOURLY, "jitter": "5"}}})


def test_a_schedule_is_declared_with_what_schedule_takes():
    entry = {**HOURLY, "timezone": "Europe/London", "jitter": timedelta(minutes=1), "priority": 0}
    settings = read({"SCHEDULES": {"nightly": entry, "plain": HOURLY}})
    assert settings.SCHEDULES == {
        "nightly": plan(**entry),
        "plain": plan("@every 1h", "reports"),
    }
    assert read({}).SCHEDULES == {}


def test_what_is_set_lies_over_the_defaults():
    settings = read(
        {
            "DATABASE": "default",
            "QUEUES": {"reports": {"max_attempts": 9, "retention": timedelta(days=1)}},
            "OUTBOXES": {"reports": {"backoff": timedelta(seconds=1.5)}},
            "BACKOFF_MAX": timedelta(hours=2),
            "LEASE_SECONDS": 1,
            "POLL_INTERVAL": 0.05,
            "NOTIFY": False,
        }
    )
    of_queue, of_outbox = settings.of("reports"), settings.of(backing_queue("reports"))
    assert of_queue == QueueSettings(QUEUE_DEFAULTS.over({"max_attempts": 9}), 86_400.0)
    assert of_outbox == QueueSettings(OUTBOX_DEFAULTS.over({"backoff": 1.5}))
    assert (settings.BACKOFF_MAX, settings.LEASE_SECONDS, settings.POLL_INTERVAL) == (7200, 1, 0.05)


def test_zero_is_a_value():
    entry = {"priority": 0, "backoff": 0, "expires_in": 0, "retention": 0}
    settings = read({"BACKOFF_MAX": 0, "QUEUES": {"reports": entry}})
    of_queue = settings.of("reports")
    assert settings.BACKOFF_MAX == 0.0
    assert (of_queue.options.backoff, of_queue.options.expires_in, of_queue.retention) == (0, 0, 0)


# -- in force -------------------------------------------------------------------------------------


def test_the_settings_in_force_follow_an_override():
    with override_settings(ALKSTORE={"BACKOFF_MAX": 7}):
        assert current().BACKOFF_MAX == 7.0
        with override_settings(ALKSTORE={"BACKOFF_MAX": 8}):
            assert current().BACKOFF_MAX == 8.0
        assert current().BACKOFF_MAX == 7.0
    assert current() == read({})


def test_wrong_settings_are_an_error_each_time_they_are_asked_for(settings):
    settings.ALKSTORE = {"QUEUE": {}}
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured):
            current()


@pytest.mark.django_db
def test_settings_lie_over_the_defaults_and_the_calls_own_options_over_both(settings):
    entry = {"max_attempts": 9, "priority": 4}
    settings.ALKSTORE = {"QUEUES": {"x": entry}, "OUTBOXES": {"x": {"backoff": 0}}}
    row = get_job(queue("x").enqueue(None, priority=0))
    assert (row.max_attempts, row.priority, row.backoff) == (9, 0, 5.0)
    row = get_job(outbox("x").enqueue(None))
    assert (row.max_attempts, row.priority, row.backoff) == (5, 0, 0.0)
    row = get_job(queue("another").enqueue(None))
    assert (row.max_attempts, row.priority, row.backoff) == (3, 0, 5.0)


def test_a_token_is_in_no_message_about_it():
    with pytest.raises(ImproperlyConfigured) as caught:
        read({"METRICS_TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "a secret of 16" not in repr(read({"METRICS_TOKEN": "a secret of 16 characters"}))


def test_rows_live_for_documented_times_or_for_ever():
    settings, kept = read({}), read({"DEAD_RETENTION": None, "FIRE_RETENTION": timedelta(days=1)})
    lives = (settings.DEAD_RETENTION, settings.FIRE_RETENTION, settings.COUNT_RETENTION)
    assert lives == (30 * 86_400, 90 * 86_400, 7 * 86_400)
    assert (kept.DEAD_RETENTION, kept.FIRE_RETENTION) == (None, 86_400)
