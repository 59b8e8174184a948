"""Upgrades: from the first tables to the newest and back, with rows in every state."""

import hashlib
import sys

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from django_alkstore import queue
from django_alkstore.models import Fire, Job, Lock, Schedule
from django_alkstore.scheduler import Scheduler

from .factories import FireFactory, ago
from .piles import pile
from .processes import across_connections

pytestmark = across_connections

FIRST = "0001_initial"
KINDS = ["ready", "scheduled", "lapsed", "expired", "dead", "done"]

CHECKED = """
import sys
from testproject import settings
settings.DEFAULT_AUTO_FIELD = f"django.db.models.{sys.argv[1]}"
import django; django.setup()
from django.core.management import call_command
call_command("makemigrations", "django_alkstore", check=True, dry_run=True)
"""


def migrate(*target):
    call_command("migrate", "django_alkstore", *target, verbosity=0)


@pytest.fixture
def at_first():
    """The tables as the first migration makes them; the newest again afterwards."""
    try:
        migrate(FIRST)
        yield
    finally:
        migrate()


def first_models():
    """The models as the first migration has them, by name."""
    state = MigrationLoader(connection).project_state(("django_alkstore", FIRST))
    return {model.__name__: model for model in state.apps.get_models()}


def every_kind_of_row():
    """Write, through the first models, rows of every table and in every state."""
    first = first_models()
    job = first["Job"].objects.create(
        queue="mails", state="running", priority=-3, payload={"é": [1.5, None]}, run_at=ago(60),
        due_at=ago(-60), attempts=2, max_attempts=3, visibility_timeout=0.5, backoff=5,
        worker_id="host:1", claim_token=2**62, expires_at=ago(-600), schedule="hourly",
        scheduled_for=ago(60), last_error="boom", last_traceback="a\n  b", created_at=ago(90),
    )  # fmt: skip
    instants = {"created_at": ago(90), "updated_at": ago(90)}
    first["Schedule"].objects.create(
        name="hourly", spec="@every 1h", queue="mails", payload=None, priority=7, max_attempts=1,
        visibility_timeout=0.5, backoff=0, expires_in=60, next_fire_at=ago(1), **instants,
    )  # fmt: skip
    first["Schedule"].objects.create(
        name="paused", spec="@every 1d", queue="mails", payload={}, enabled=False, **instants
    )
    first["Fire"].objects.create(
        schedule="hourly", boundary=ago(60), fired_at=ago(59), job_id=job.pk, leader="host:1",
        skipped=7,
    )  # fmt: skip
    for name, owner in (("import", "host:1"), ("rates", "")):
        first["Lock"].objects.create(
            name=name, owner=owner, token=5, acquired_at=ago(60), expires_at=ago(1)
        )


def contents():
    """Of each of the first tables the number of rows, and a digest of all that it held then."""
    return {name: content(model._meta) for name, model in first_models().items()}


def content(meta):
    columns = ", ".join(field.column for field in meta.local_fields)
    digest, count = hashlib.sha256(), 0
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {meta.db_table} ORDER BY id")
        for row in cursor:
            digest.update(repr(row).encode())
            count += 1
    return count, digest.hexdigest()


@pytest.mark.parametrize(
    ("auto_field", "of_each"), [("AutoField", 17_000), ("BigAutoField", 170)], ids=["small", "big"]
)
def test_an_upgrade_loses_no_row_there_and_back_and_there_again(
    at_first, settings, auto_field, of_each
):
    settings.DEFAULT_AUTO_FIELD = f"django.db.models.{auto_field}"
    every_kind_of_row()
    for kind in KINDS:
        pile(kind, of_each)
    before = contents()
    counts = {name: count for name, (count, _) in before.items()}
    assert counts == {"Job": 6 * of_each + 1, "Schedule": 2, "Fire": 1, "Lock": 2}
    migrate()
    assert contents() == before
    migrate(FIRST)
    assert contents() == before
    migrate()
    assert contents() == before
    assert len(queue("reports").claim_batch("w", 100)) == 100


def test_rows_of_the_first_release_are_worked_on_after_the_upgrade(at_first):
    every_kind_of_row()
    migrate()
    Job.objects.update(due_at=ago(1))
    Scheduler().tick()
    claimed = queue("mails").claim_batch("w", 5)
    assert [job.schedule for job in claimed] == ["hourly"] * 2
    assert queue("mails").ack_batch(claimed) == 2
    assert Fire.objects.filter(schedule="hourly").count() == 2


def test_what_still_runs_of_the_first_release_can_write_while_others_are_upgraded():
    every_kind_of_row()
    assert [model.objects.count() for model in (Job, Schedule, Fire, Lock)] == [1, 2, 1, 2]
    Scheduler().tick()
    assert Job.objects.filter(schedule="hourly").count() == 2


def test_what_only_the_newest_tables_can_hold_stops_no_way_back():
    by_hand = FireFactory(boundary=None)
    FireFactory(job_id=None)
    try:
        migrate(FIRST)
        fires = first_models()["Fire"].objects.order_by("id")
        assert [fire.boundary == by_hand.fired_at for fire in fires] == [True, False]
        assert [fire.job_id for fire in fires] == [by_hand.job_id, 0]
    finally:
        migrate()


@pytest.mark.parametrize("auto_field", ["AutoField", "BigAutoField"])
def test_the_models_and_the_migrations_agree_whatever_the_project_prefers(start, auto_field):
    child = start(argv=[sys.executable, "-c", CHECKED, auto_field])
    assert child.wait() == 0, child.text
