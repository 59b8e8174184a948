"""The cells of the matrix: ways to set up a database, or Django, that may matter to us.

A cell is the same suite in another environment: ``query`` follows the ``?`` of
``ALKSTORE_DATABASE_URL``, ``env`` are other variables that ``testproject.settings`` reads.
"""

import os
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ..pooler import pooled
from ..processes import CHILDREN_QUERY, URL

CELL = "MATRIX_CELL"  # the environment variable with the name of the cell that runs
SERVERS = ("postgresql", "mysql")
SCHEDULES = ("schedules", "scheduler", "declared", "timetables")
CORE = ("conformance", "queues", "locks", "outboxes", "isolation", "workers", *SCHEDULES)
PROCESSES = ("processes", "worker_processes", "wakeups")
INSTANTS = ("models", "conformance", "queues", "locks", "outboxes", "cron", "clocks", *SCHEDULES)


@dataclass(frozen=True)
class Cell:
    """``look`` is a function of ``looks`` that returns ``seen`` where the cell is in force.

    ``files`` are the tests that fit; ``sessions`` are those of a pooler in between.
    """

    look: str
    seen: Any
    on: tuple[str, ...] = ("sqlite", *SERVERS)
    files: tuple[str, ...] = (*CORE, *PROCESSES)
    query: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    sessions: int = 0


def isolation(level):
    query = f"isolation_level={level.replace(' ', '+')}"
    return Cell("isolation_levels", (level, level), SERVERS, query=query)


def postgresql(look, seen, query, sessions=0):
    return Cell(look, seen, ("postgresql",), query=query, sessions=sessions)


def zones():
    """USE_TZ, TIME_ZONE, and the zone of the process."""
    places = product("10", ("UTC", "Europe/Moscow", "America/Los_Angeles"), ("", "Asia/Tokyo"))
    for use_tz, zone, process in places:
        aware = use_tz == "1"
        env = {"SHOP_USE_TZ": use_tz, "SHOP_TIME_ZONE": zone} | ({"TZ": process} if process else {})
        name = "-".join(filter(None, ["zones", "aware" if aware else "naive", zone, process]))
        yield name, Cell("zones", (aware, zone), files=INSTANTS, env=env)


# The suite itself needs each statement committed: only the processes that it starts go without.
NO_AUTOCOMMIT = {CHILDREN_QUERY: "AUTOCOMMIT=false"}
REPLICA = {"SHOP_REPLICA_ROUTER": "tests.matrix.replica.Router"}
BINDING = "server_side_binding=true"  # without it nothing is prepared
REQUESTS = ("outboxes", "demo", "admin", *PROCESSES)
CELLS = {
    "defaults": Cell("sqlite_options", ("delete", 5000, None), ("sqlite",), query="OPTIONS={}"),
    "read-committed": isolation("read committed"),
    "repeatable-read": isolation("repeatable read"),
    "serializable": isolation("serializable"),
    "server-side-binding": postgresql("type_of_one", "smallint", BINDING),
    "prepared": postgresql("is_prepared_at_once", True, f"{BINDING}&prepare_threshold=0"),
    "prepared-later": postgresql("is_prepared_in_time", True, f"{BINDING}&prepare_threshold=1"),
    "pooled": postgresql("is_pooled", True, "DISABLE_SERVER_SIDE_CURSORS=true", sessions=20),
    "autocommit-off": Cell("commits_by_itself", False, files=PROCESSES, env=NO_AUTOCOMMIT),
    "atomic-requests": Cell(
        "has_atomic_requests", True, files=REQUESTS, query="ATOMIC_REQUESTS=true"
    ),
    "lagging-replica": Cell("readers", ("replica", "default"), env=REPLICA),
    **dict(zones()),
}


@contextmanager
def environment(name, url, directory):
    """The environment of a cell on the database; files it needs go to the directory."""
    cell = CELLS[name]
    shared = {key: value for key, value in os.environ.items() if key != "TZ"}
    shared |= {CELL: name, "ALKSTORE_TEST_FILE": str(directory / "tests.sqlite3")}
    pooler = pooled(url, directory, cell.sessions) if cell.sessions else nullcontext(url)
    with pooler as reached:
        yield {**shared, URL: f"{reached}?{cell.query}", **cell.env}
