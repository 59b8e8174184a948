"""The cost of the next job does not depend on how many wait, are delayed, died or finished: each
statement of the hot path goes through the index that is meant for it, and sorts nothing.
"""

import json

import pytest
from django.db import connection

from django_alkstore import queue, sql
from django_alkstore.models import Fire, Schedule

from .factories import FireFactory, ScheduleFactory
from .piles import pile
from .plans import faults_of, plans_of
from .processes import across_connections

pytestmark = across_connections  # ANALYZE TABLE commits what came before it

QUEUES = ["reports", "mails", "images"]


@pytest.fixture(params=["never analyzed", "analyzed"])
def many_rows(request):
    for name in QUEUES:
        for kind, count in {"done": 6_000, "dead": 500, "scheduled": 2_000, "ready": 400}.items():
            pile(kind, count, queue=name, priority=9 if kind == "scheduled" else 0)
    for kind in ("lapsed", "expired"):
        pile(kind, 100)
    schedules = ScheduleFactory.build_batch(2_000) + ScheduleFactory.build_batch(100, overdue=True)
    Schedule.objects.bulk_create(schedules)
    Fire.objects.bulk_create(FireFactory.build(schedule=row.name) for row in schedules)
    if request.param == "analyzed":
        with connection.cursor() as cursor:
            for table in ("job", "schedule", "lock", "fire"):
                word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
                cursor.execute(f"{word} django_alkstore_{table}")
                if connection.vendor == "mysql":
                    cursor.fetchall()


def claim_a_batch():
    return queue("reports").claim_batch("w", 50)


VERBS = {
    "claim one": lambda: sql.engine().claim("reports", "w", 1, 1),
    "claim many": lambda: sql.engine().claim("reports", "w", 1, 50),
    "claim one of late": lambda: sql.engine().claim("reports", "w", 1, 1, lately=600),
    "claim many of late": lambda: sql.engine().claim("reports", "w", 1, 50, lately=600),
    "sweep": lambda: sql.engine().sweep("reports"),
    "sweep of late": lambda: sql.engine().sweep("reports", lately=600),
    "repair": lambda: sql.engine().repair("reports"),
    "peek": lambda: sql.engine().peek(QUEUES),
    "peek of late": lambda: sql.engine().peek_lately(QUEUES, 600, 1),
    "next boundary": lambda: sql.engine().next_boundary(sql.utc_now(), []),
    "due schedules": lambda: sql.engine().schedules_due(sql.utc_now(), 50, []),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_the_hot_path_walks_no_table_and_sorts_nothing(many_rows, verb):
    for text, plan in plans_of(verb).items():
        assert faults_of(plan) == [], f"{text}\n{plan}"


@pytest.mark.parametrize(
    "verb", [queue("reports").ack_batch, queue("reports").release_batch], ids=["ack", "release"]
)
def test_a_batch_is_written_back_by_primary_key_alone(many_rows, verb):
    jobs = claim_a_batch()
    ((text, plan),) = plans_of(lambda: verb(jobs)).items()
    assert faults_of(plan) == []
    for index in ("alkstore_job_due", "alkstore_job_claim", "alkstore_job_finished"):
        assert index not in json.dumps(plan), f"{text}\n{plan}"
