"""What the database means to do with a statement: its plan, and what in it would not scale."""

import json
import re

from django.db import connection
from django.test.utils import CaptureQueriesContext


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


def indexes_of(plan):
    """The names of the indexes that a plan goes by; the primary key is ``primary``.

    Where MariaDB has looked up the answer while it planned, it says so and names none.
    """
    if isinstance(plan, str):
        found = re.findall(r"INDEX (\w+)|(INTEGER PRIMARY KEY)", plan)
        return {name or "primary" for name, _ in found}
    names = {node.get("Index Name") or node.get("key") for node in nodes_of(plan)} - {None}
    words = {node["message"] for node in nodes_of(plan) if "message" in node}
    return {"primary" if re.fullmatch("PRIMARY|.*_pkey", name) else name for name in names or words}


def nodes_of(plan):
    """Every object in a plan that is JSON."""
    if isinstance(plan, dict):
        yield plan
    for part in plan.values() if isinstance(plan, dict) else plan:
        if isinstance(part, (dict, list)):
            yield from nodes_of(part)
