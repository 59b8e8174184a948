"""The cost of the next job does not depend on how many wait, are delayed, died or finished: each
statement of the hot path goes through the index that is meant for it, and sorts nothing.
"""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_alkstore import queue, sql

from .factories import ScheduleFactory
from .piles import pile
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
    ScheduleFactory.create_batch(300)
    ScheduleFactory(overdue=True)
    if request.param == "analyzed":
        with connection.cursor() as cursor:
            for table in ("job", "schedule", "lock", "fire"):
                word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
                cursor.execute(f"{word} django_alkstore_{table}")
                if connection.vendor == "mysql":
                    cursor.fetchall()


def plans_of(verb):
    """Each statement that ``verb`` sends, with the database's plan for it."""
    with CaptureQueriesContext(connection) as captured:
        verb()
    texts = [query["sql"] for query in captured if "django_alkstore" in query["sql"]]
    assert texts
    return {text: plan_of(text) for text in texts if not text.startswith("INSERT")}


def plan_of(text):
    explain = {
        "sqlite": "EXPLAIN QUERY PLAN",
        "postgresql": "EXPLAIN (FORMAT JSON)",
        "mysql": "EXPLAIN FORMAT=JSON",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {text}")
        rows = cursor.fetchall()
    if connection.vendor == "sqlite":
        return "\n".join(row[3] for row in rows)
    plan = rows[0][0]
    return json.loads(plan) if isinstance(plan, str) else plan


def faults_of(plan):
    """What in a plan says that it walks a table of ours or sorts rows."""
    if isinstance(plan, str):
        return [word for word in ("SCAN django_alkstore", "TEMP B-TREE") if word in plan]
    return [fault for node in nodes_of(plan) for fault in node_faults(node)]


def node_faults(node):
    if node.get("Node Type") in ("Seq Scan", "Sort"):
        yield node["Node Type"]
    if node.get("access_type") == "ALL" and node["table_name"].startswith("django_alkstore"):
        yield "a walk of the table"
    if "filesort" in node:
        yield "filesort"


def nodes_of(plan):
    """Every object in a plan that is JSON."""
    if isinstance(plan, dict):
        yield plan
    for part in plan.values() if isinstance(plan, dict) else plan:
        if isinstance(part, (dict, list)):
            yield from nodes_of(part)


def claim_a_batch():
    return queue("reports").claim_batch("w", 50)


VERBS = {
    "claim one": lambda: sql.engine().claim("reports", "w", 1, 1),
    "claim many": lambda: sql.engine().claim("reports", "w", 1, 50),
    "sweep": lambda: sql.engine().sweep("reports"),
    "repair": lambda: sql.engine().repair("reports"),
    "peek": lambda: sql.engine().peek(QUEUES),
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
