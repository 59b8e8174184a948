"""Many rows at once, inserted by one statement of the database's own."""

from django.db import connection

SPELLINGS = {  # rows numbered 1 to {count}; now; a day ahead of now; a minute ago
    "sqlite": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})",
        "strftime('%Y-%m-%d %H:%M:%f', 'now')",
        "strftime('%Y-%m-%d %H:%M:%f', 'now', '1 day')",
        "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 minute')",
    ),
    "postgresql": (
        "WITH n(i) AS (SELECT generate_series(1, {count}))",
        "NOW()",
        "NOW() + INTERVAL '1 day'",
        "NOW() - INTERVAL '1 minute'",
    ),
    "mysql": (
        "WITH n(i) AS (SELECT seq FROM seq_1_to_{count})",
        "UTC_TIMESTAMP(6)",
        "UTC_TIMESTAMP(6) + INTERVAL 1 DAY",
        "UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE",
    ),
}


def pile(kind, count, *, queue="reports", priority=0, **others):
    """Insert ``count`` jobs that are ready, scheduled, lapsed, expired, dead or done.

    ``others``: what else to write into columns, as SQL.
    """
    series, now, ahead, ago = SPELLINGS[connection.vendor]
    columns = {
        "queue": f"'{queue}'", "priority": priority, "payload": "'{}'", "run_at": now,
        "attempts": 0, "max_attempts": 5, "visibility_timeout": 60, "backoff": 5,
        "created_at": now,
    }  # fmt: skip
    columns |= {
        "ready": {"state": "'ready'"},
        "scheduled": {"state": "'scheduled'", "run_at": ahead, "due_at": ahead},
        "lapsed": {"state": "'running'", "due_at": ago, "claim_token": 1, "attempts": 1},
        "expired": {"state": "'ready'", "due_at": ago, "expires_at": ago},
        "dead": {"state": "'dead'", "finished_at": now, "attempts": 5},
        "done": {"state": "'done'", "finished_at": now, "attempts": 1},
    }[kind]
    columns |= others
    into = f"INSERT INTO django_alkstore_job ({', '.join(columns)})"
    values = ", ".join(map(str, columns.values()))
    parts = [series.format(count=count), into]
    if connection.vendor == "mysql":
        parts.reverse()
    with connection.cursor() as cursor:
        cursor.execute(f"{' '.join(parts)} SELECT {values} FROM n")
