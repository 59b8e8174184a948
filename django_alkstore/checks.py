"""System checks: what ``manage.py check`` can tell before anything is enqueued.

Without options they read the settings and ask the routers. With ``--database`` they look at how
that database is set up, with ``--deploy`` at whether it is migrated, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseError
from django.db import connections, router
from django.db.migrations.executor import MigrationExecutor

from . import conf, registry, sql

LABEL = "django_alkstore"


def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E001: the ALKSTORE setting is wrong."""
    try:
        conf.current()
    except ImproperlyConfigured as exc:
        return [Error(str(exc), id="django_alkstore.E001")]
    return []


def check_routing(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E002: the tables are routed apart, so a job and its fire could not commit together."""
    models = apps.get_app_config(LABEL).get_models()
    aliases = {model.__name__: router.db_for_write(model) for model in models}
    if len(set(aliases.values())) == 1:
        return []
    got = ", ".join(f"{name} in {alias!r}" for name, alias in aliases.items())
    return [
        Error(
            f"expected the models of django_alkstore to be in one database, got {got}",
            hint="Let db_for_write and allow_migrate of your router give them the same alias.",
            id="django_alkstore.E002",
        )
    ]


def check_alias(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """E003: the router keeps the tables out of the database that is used."""
    if (alias := _alias()) is None:
        return []
    models = apps.get_app_config(LABEL).get_models()
    kept_out = [m.__name__ for m in models if not router.allow_migrate_model(alias, m)]
    if not kept_out:
        return []
    return [
        Error(
            f"expected the router to allow our tables in {alias!r}, got no for "
            + ", ".join(kept_out),
            hint="ALKSTORE['DATABASE'], or db_for_write of your router, says that they are there.",
            id="django_alkstore.E003",
        )
    ]


def check_names(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """W004: one name is a queue and an outbox: two things, of which one was hardly meant."""
    try:
        given = conf.current()
    except ImproperlyConfigured:
        return []
    queues = {*given.QUEUES, *registry.handlers.names()}
    outboxes = {*given.OUTBOXES, *registry.deliveries.names()}
    return [
        Warning(
            f"expected {name!r} to be a queue or an outbox, got both",
            hint="They are apart: a queue's jobs go to its handler, an outbox's to its delivery.",
            id="django_alkstore.W004",
        )
        for name in sorted(queues & outboxes)
    ]


# -- those that ask the database ------------------------------------------------------------------

FAULTS = {
    "immediate": Warning(
        "SQLite begins transactions without the write lock, and one that writes after it has read "
        "fails at once when another has written.",
        hint="Set 'transaction_mode': 'IMMEDIATE' in OPTIONS of the database.",
        id="django_alkstore.W005",
    ),
    "wal": Warning(
        "SQLite is not in WAL mode: readers and the one writer wait for each other.",
        hint="Set 'init_command': 'PRAGMA journal_mode = WAL;' in OPTIONS of the database.",
        id="django_alkstore.W006",
    ),
    "timeout": Warning(
        f"SQLite waits for the write lock for less than {sql.SHORTEST_TIMEOUT:.0f} seconds.",
        hint="Set 'timeout': 20 in OPTIONS of the database.",
        id="django_alkstore.W007",
    ),
    "local time": Warning(
        "USE_TZ is off: MySQL's other columns hold local time, which repeats an hour every autumn. "
        "Ours hold UTC.",
        hint="Set USE_TZ = True, or compare columns of both kinds with care.",
        id="django_alkstore.W008",
    ),
    "charset": Warning(
        "MySQL cannot hold every text here: the connection's character set is not utf8mb4, or the "
        "collation of a column of ours is not utf8mb4_bin.",
        hint="ALTER TABLE ... CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, and leave "
        "'charset' in OPTIONS at utf8mb4.",
        id="django_alkstore.W009",
    ),
}


def check_database(
    app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W005 to W009: the database is set up so that it serves us badly."""
    alias = _alias()
    if alias is None or alias not in (databases or ()):
        return []
    return [FAULTS[fault] for fault in sql.engine(alias).faults()]


def check_migrated(
    app_configs: Any, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """E010: a migration is missing, or the database cannot be asked. Only with --deploy."""
    if (alias := _alias()) is None:
        return []
    try:
        lacking = lacks_migrations(alias)
        faults = [] if databases else [FAULTS[fault] for fault in sql.engine(alias).faults()]
    except DatabaseError as exc:
        return [Error(f"the database {alias!r} cannot be asked: {exc}", id="django_alkstore.E010")]
    if not lacking:
        return faults
    message = f"the database {alias!r} lacks migrations of django_alkstore"
    return [Error(message, hint="Run 'manage.py migrate'.", id="django_alkstore.E010"), *faults]


def check_debug(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """W011: a worker in DEBUG. Only with --deploy."""
    if not settings.DEBUG:
        return []
    return [
        Warning(
            "DEBUG is on: a worker logs each statement it sends, payloads included.",
            hint="Set DEBUG = False where workers run.",
            id="django_alkstore.W011",
        )
    ]


def lacks_migrations(alias: str) -> bool:
    """Whether migrations of ours have not been applied to the database."""
    executor = MigrationExecutor(connections[alias])
    ours = [node for node in executor.loader.graph.leaf_nodes() if node[0] == LABEL]
    return bool(executor.migration_plan(ours))


def _alias() -> str | None:
    """The database in use; None if the settings are wrong, which is E001's to say."""
    try:
        return sql.write_alias()
    except ImproperlyConfigured:
        return None
