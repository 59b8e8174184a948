"""What is in force in a cell, as the database or Django itself says."""

from django.conf import settings
from django.db import connection, router, transaction

from django_alkstore.models import Job

from ..processes import is_pooled  # noqa: F401  a look, too
from .replica import PACKAGE


def answer(text, *params):
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchone()[0]


ISOLATION = {
    "postgresql": "SHOW TRANSACTION ISOLATION LEVEL",
    "mysql": "SELECT LOWER(REPLACE(@@tx_isolation, '-', ' '))",
}


def isolation_levels():
    """That of a statement by itself, and that inside a transaction."""
    alone = answer(ISOLATION[connection.vendor])
    with transaction.atomic():
        return alone, answer(ISOLATION[connection.vendor])


def sqlite_options():
    """The journal, how long a writer waits in milliseconds, and how a transaction begins."""
    waits = answer("PRAGMA busy_timeout")
    return answer("PRAGMA journal_mode"), waits, connection.transaction_mode


def type_of_one():
    """One in the text is an integer, one that is bound by the server a smallint."""
    return answer("SELECT pg_typeof(%s)::text", 1)


def is_prepared_at_once():
    answer("SELECT 1")
    return answer("SELECT COUNT(*) FROM pg_prepared_statements WHERE statement = 'SELECT 1'") == 1


def is_prepared_in_time():
    return not is_prepared_at_once() and is_prepared_at_once()


def commits_by_itself():
    return connection.get_autocommit()


def has_atomic_requests():
    return connection.settings_dict["ATOMIC_REQUESTS"]


def readers():
    """Where the package would read jobs, and where everybody else does."""
    theirs = compile("router.db_for_read(Job)", f"{PACKAGE}planted.py", "eval")
    return eval(theirs, {"router": router, "Job": Job}), router.db_for_read(Job)


def zones():
    return settings.USE_TZ, settings.TIME_ZONE
