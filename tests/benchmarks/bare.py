"""What the bare driver can do on the same table: the ceiling that our figures stand beside.

No Django between: the driver's own cursor, one prepared text, the fewest statements that do the
same work. It has no sweep, no fence that anybody checks, no fairness and no handler.
"""

import json

from django.db import connection

QUEUE = "__alkstore_outbox:bench"
COLUMNS = (
    "queue, state, priority, payload, run_at, attempts, max_attempts, visibility_timeout,"
    " backoff, created_at"
)
JOB = "django_alkstore_job"


class Bare:
    """The driver's connection behind Django's, in autocommit."""

    def __init__(self):
        connection.ensure_connection()
        self.raw = connection.connection
        self.cursor = self.raw.cursor()
        self.mark = "?" if connection.vendor == "sqlite" else "%s"
        self.now = {
            "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')",
            "postgresql": "STATEMENT_TIMESTAMP()",
            "mysql": "UTC_TIMESTAMP(6)",
        }[connection.vendor]
        values = f"{self.mark}, 'ready', 0, {self.mark}, {self.now}, 0, 5, 60, 5, {self.now}"
        self.insert_text = f"INSERT INTO {JOB} ({COLUMNS}) VALUES ({values})"

    def begin(self):
        self.cursor.execute("BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "BEGIN")

    def commit(self):
        self.cursor.execute("COMMIT")

    def insert(self, payload):
        """One job, committed by itself."""
        self.cursor.execute(self.insert_text, [QUEUE, json.dumps(payload)])

    def insert_many(self, payloads):
        """All in one transaction, the way the driver does many."""
        rows = [(QUEUE, json.dumps(payload)) for payload in payloads]
        self.begin()
        self.cursor.executemany(self.insert_text, rows)
        self.commit()

    def claim(self, limit):
        """Up to ``limit`` jobs: their ids and payload texts."""
        if connection.vendor == "mysql":
            return self._claim_in_two(limit)
        skip = " FOR UPDATE SKIP LOCKED" if connection.vendor == "postgresql" else ""
        self.cursor.execute(
            f"UPDATE {JOB} SET state = 'running', attempts = attempts + 1, claim_token = 1,"
            f" worker_id = 'bare', due_at = {self.now} WHERE id IN (SELECT id FROM {JOB}"
            f" WHERE queue = '{QUEUE}' AND state = 'ready' ORDER BY priority DESC, run_at, id"
            f" LIMIT {limit}{skip}) RETURNING id, {self._payload()}"
        )
        return self.cursor.fetchall()

    def _payload(self):
        return "payload::text" if connection.vendor == "postgresql" else "payload"

    def _claim_in_two(self, limit):
        self.begin()
        self.cursor.execute(
            f"SELECT id, payload FROM {JOB} WHERE queue = '{QUEUE}' AND state = 'ready'"
            f" ORDER BY priority DESC, run_at, id LIMIT {limit} FOR UPDATE SKIP LOCKED"
        )
        rows = self.cursor.fetchall()
        if rows:
            self.cursor.execute(
                f"UPDATE {JOB} SET state = 'running', attempts = attempts + 1, claim_token = 1,"
                f" worker_id = 'bare', due_at = {self.now} WHERE id IN ({self._ids(rows)})"
            )
        self.commit()
        return rows

    def delete(self, rows):
        self.cursor.execute(f"DELETE FROM {JOB} WHERE id IN ({self._ids(rows)})")

    def _ids(self, rows):
        return ", ".join(str(row[0]) for row in rows)

    def drain(self, limit, call):
        """Claim, call and delete, ``limit`` at a time, until nothing is left; how many."""
        count = 0
        while rows := self.claim(limit):
            for row in rows:
                call(json.loads(row[1]))
            self.delete(rows)
            count += len(rows)
        return count
