"""The tables: instants whatever the settings say of zones, any text, names byte for byte."""

import sys
import time
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction
from django.test import override_settings
from django.utils.timezone import is_aware, make_aware, override

from django_alkstore import get_job, lock, queue
from django_alkstore.models import Fire, Job, Lock, Schedule

from .factories import FireFactory, JobFactory, LockFactory, ScheduleFactory, ago
from .processes import across_connections, database_url

pytestmark = pytest.mark.django_db


def reports():
    """A handle that has not swept yet."""
    return queue("reports")


# -- instants -------------------------------------------------------------------------------------

EPOCH_SECONDS = {
    "sqlite": "strftime('%s', {})",
    "postgresql": "EXTRACT(EPOCH FROM {})",
    "mysql": "TIMESTAMPDIFF(SECOND, '1970-01-01', {})",
}


LOCAL = [(False, "UTC"), (False, "Europe/Moscow"), (False, "America/Los_Angeles")]


@pytest.fixture(params=[(True, "UTC"), (True, "America/Los_Angeles"), *LOCAL], ids=str)
def zones(request):
    """A project with USE_TZ and TIME_ZONE so."""
    use_tz, time_zone = request.param
    with override_settings(USE_TZ=use_tz, TIME_ZONE=time_zone):
        yield request.param


def stored_seconds(column, id):
    """Seconds since the epoch, as the server reads its own column: UTC where it has no zones."""
    with connection.cursor() as cursor:
        expression = EPOCH_SECONDS[connection.vendor].format(column)
        cursor.execute(f"SELECT {expression} FROM django_alkstore_job WHERE id = {id}")
        return float(cursor.fetchone()[0])


def seconds(instant):
    """Seconds since the epoch, of what a model shows: local to the project if it is naive."""
    return (instant if is_aware(instant) else make_aware(instant)).timestamp()


def near(value):
    return pytest.approx(value, abs=10)


@across_connections
def test_a_delay_is_the_same_instant_in_every_zone(zones):
    id = reports().enqueue({}, delay=600, expires_in=60)
    row = get_job(id)
    assert is_aware(row.run_at) is zones[0]
    for column, ahead in (("run_at", 600), ("due_at", 600), ("expires_at", 660), ("created_at", 0)):
        assert stored_seconds(column, id) == near(time.time() + ahead)
        assert seconds(getattr(row, column)) == near(time.time() + ahead)


@across_connections
def test_a_run_at_is_the_same_instant_in_every_zone(zones):
    at = datetime(2030, 7, 1, 12, tzinfo=timezone.utc)
    id = reports().enqueue({}, run_at=at.astimezone(ZoneInfo("Asia/Kolkata")))
    assert stored_seconds("run_at", id) == at.timestamp()
    assert seconds(get_job(id).run_at) == at.timestamp()


@across_connections
@pytest.mark.parametrize("zones", LOCAL, indirect=True, ids=str)
def test_a_naive_run_at_is_the_projects_local_time_where_zones_are_off(zones):
    _, time_zone = zones
    id = reports().enqueue({}, run_at=datetime(2030, 7, 1, 12))
    expected = datetime(2030, 7, 1, 12, tzinfo=ZoneInfo(time_zone))
    assert stored_seconds("run_at", id) == expected.timestamp()


@across_connections
def test_a_claim_lapses_at_the_same_instant_in_every_zone(zones):
    JobFactory(visibility_timeout=600)
    job = reports().claim("w")
    assert seconds(job.claim_expires_at) == near(time.time() + 600)
    assert stored_seconds("due_at", job.id) == near(time.time() + 600)
    assert seconds(job.created_at) == near(time.time())


@across_connections
def test_time_brings_back_what_is_due_in_every_zone_and_nothing_else(zones):
    due = {JobFactory(lapsed=True).id, JobFactory(scheduled=True, run_at=ago(5)).id}
    JobFactory(running=True, due_at=ago(-5 * 60))
    JobFactory(scheduled=True, run_at=ago(-5 * 60))
    expired = JobFactory(expired=True)
    assert {job.id for job in reports().claim_batch("w", 10)} == due
    assert get_job(expired.id).state == "dead"
    assert reports().engine.peek(["reports"]).seconds == pytest.approx(300, abs=10)


@across_connections
def test_a_lock_lapses_at_the_same_instant_in_every_zone(zones):
    LockFactory(name="held", expires_at=ago(-5 * 60))
    LockFactory(name="stale", expires_at=ago(5 * 60))
    assert lock("held").acquire() is False
    assert lock("stale").acquire() is True


@across_connections
def test_a_row_reads_the_same_instant_after_the_settings_changed(zones):
    row = JobFactory(scheduled=True)
    written = seconds(row.due_at)
    with override_settings(USE_TZ=True, TIME_ZONE="Australia/Sydney"):
        assert get_job(row.id).due_at.timestamp() == pytest.approx(written, abs=0.001)


@across_connections
def test_an_instant_is_found_by_the_value_that_a_model_shows(zones):
    row = JobFactory(scheduled=True)
    row.refresh_from_db()
    rows = Job.objects.all()
    assert rows.filter(due_at=row.due_at).exists()
    assert rows.filter(due_at__lt=row.due_at + timedelta(seconds=1)).exists()
    assert not rows.filter(due_at__lt=row.due_at).exists()


ELSEWHERE = """
from testproject import settings
settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Moscow"
import django; django.setup()
from datetime import datetime
from django_alkstore import queue
print(queue("reports").enqueue({}, delay=600))
print(queue("reports").enqueue({}, run_at=datetime(2030, 7, 1, 12)))
"""


@across_connections
def test_the_zone_of_the_host_changes_nothing(start):
    child = start(argv=[sys.executable, "-c", ELSEWHERE], TZ="Asia/Tokyo")
    assert child.wait() == 0, child.text
    delayed, local = child.text.split()
    assert stored_seconds("run_at", delayed) == near(time.time() + 600)
    noon = datetime(2030, 7, 1, 12, tzinfo=ZoneInfo("Europe/Moscow"))
    assert stored_seconds("run_at", local) == noon.timestamp()


@across_connections
def test_the_current_time_zone_of_a_request_changes_nothing(zones):
    with override("Asia/Tokyo"):
        id = reports().enqueue({}, delay=600)
        row = JobFactory(scheduled=True)
        shown = get_job(id).run_at, JobFactory(running=True).claim_expires_at
    assert stored_seconds("run_at", id) == near(time.time() + 600)
    assert seconds(shown[0]) == near(time.time() + 600)
    assert seconds(get_job(row.id).due_at) == seconds(row.due_at) == near(time.time() + 60)
    assert seconds(shown[1]) == near(time.time() + 60)


@across_connections
@pytest.mark.parametrize("zones", LOCAL, indirect=True, ids=str)
def test_local_time_is_the_projects_whatever_the_zone_of_a_request(zones):
    noon = datetime(2030, 7, 1, 12)
    JobFactory(visibility_timeout=600)
    with override("Asia/Tokyo"):
        id = reports().enqueue({}, run_at=noon)
        lapses = reports().claim("w").claim_expires_at
    assert stored_seconds("run_at", id) == noon.replace(tzinfo=ZoneInfo(zones[1])).timestamp()
    assert seconds(lapses) == near(time.time() + 600)


def test_an_instant_in_the_hour_that_comes_twice_is_kept(settings):
    settings.TIME_ZONE = "Europe/London"
    settings.USE_TZ = False
    for minutes in (0, 60):
        at = datetime(2030, 10, 27, 0, 30, tzinfo=timezone.utc) + timedelta(minutes=minutes)
        id = reports().enqueue({}, run_at=at)
        assert stored_seconds("run_at", id) == at.timestamp()


# -- text and names -------------------------------------------------------------------------------


def test_a_payload_an_error_and_a_worker_may_hold_any_text():
    text = "h\u00e9llo \u4e16\u754c \N{PILE OF POO} 'quoted' %s {now} \\"
    JobFactory(payload={text: [text]})
    job = reports().claim(text)
    assert job.payload == {text: [text]}
    assert job.fail(text)
    row = get_job(job.id)
    assert (row.payload, row.last_error, row.worker_id) == ({text: [text]}, text, text)


OLD_CHARSET = """
import django; django.setup()
from django.core.management import call_command
from django_alkstore import get_job, lock, queue
call_command("migrate", "django_alkstore", verbosity=0)
text = "\\N{PILE OF POO}"
reports = queue("reports")
reports.enqueue({text: text})
job = reports.claim(text)
assert job.payload == {text: text}
assert job.fail(text)
row = get_job(job.id)
assert (row.payload, row.last_error, row.worker_id) == ({text: text}, text, text)
assert queue("Reports").claim("w") is None
"""


@across_connections
def test_a_database_of_an_older_character_set_takes_any_text_too(only_on, start):
    only_on("mysql")
    name = f"{connection.settings_dict['NAME']}_utf8mb3"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb3")
    try:
        child = start(argv=[sys.executable, "-c", OLD_CHARSET], ALKSTORE_DATABASE_URL=url_of(name))
        assert child.wait() == 0, child.text
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")


def url_of(name):
    return database_url().rpartition("/")[0] + f"/{name}"


@pytest.mark.parametrize(
    ("make", "column"),
    [(JobFactory, "queue"), (ScheduleFactory, "name"), (FireFactory, "schedule"),
     (LockFactory, "name")],
)  # fmt: skip
def test_names_compare_byte_for_byte(make, column):
    for name in ("report", "Report", "report.", "rapport"):
        make(**{column: name})
    rows = make._meta.model.objects
    assert [rows.filter(**{column: name}).count() for name in ("report", "REPORT")] == [1, 0]
    assert rows.count() == 4


@pytest.mark.parametrize("make", [ScheduleFactory, LockFactory])
def test_a_name_is_taken_once(make):
    make(name="nightly")
    with pytest.raises(IntegrityError), transaction.atomic():
        make(name="nightly")


def test_a_boundary_fires_once():
    fire = FireFactory()
    FireFactory(schedule="another", boundary=fire.boundary)
    with pytest.raises(IntegrityError), transaction.atomic():
        FireFactory(boundary=fire.boundary)


# -- the tables themselves ------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Job, Schedule, Fire, Lock])
def test_ids_are_big_whatever_the_project_prefers(model, settings):
    assert settings.DEFAULT_AUTO_FIELD == "django.db.models.AutoField"
    assert isinstance(model._meta.pk, models.BigAutoField)


def test_the_models_and_the_migrations_agree():
    call_command("makemigrations", "django_alkstore", check=True, dry_run=True, verbosity=0)


@across_connections
def test_the_migrations_can_be_undone_and_done_again():
    try:
        call_command("migrate", "django_alkstore", "zero", verbosity=0)
        assert "django_alkstore_job" not in connection.introspection.table_names()
    finally:
        call_command("migrate", "django_alkstore", verbosity=0)
    assert reports().enqueue({})


def test_the_hot_indexes_are_there():
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "django_alkstore_job")
    claim, due = found["alkstore_job_claim"]["columns"], found["alkstore_job_due"]["columns"]
    if connection.features.supports_partial_indexes:
        assert (claim, due) == (["queue", "priority", "run_at", "id"], ["queue", "due_at"])
    else:
        assert claim == ["queue", "state", "priority", "run_at", "id", "expires_at"]
        assert due == ["queue", "state", "due_at"]


def test_columns_are_explained_to_whoever_reads_the_table(only_on):
    only_on("postgresql", "mysql")
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "django_alkstore_job")
    comments = {column.name: column.comment for column in columns}
    assert comments["claim_token"] == "the fence: new for each claim"


def test_only_a_running_job_has_a_claim_that_expires():
    assert JobFactory(scheduled=True).claim_expires_at is None
    assert JobFactory(expired=True).claim_expires_at is None
    running = JobFactory(running=True)
    assert running.claim_expires_at == running.due_at


def test_a_row_reads_as_what_it_is():
    job = JobFactory(queue="__alkstore_outbox:receipts")
    assert str(job) == f"job {job.pk} of outbox receipts (ready)"
    assert str(ScheduleFactory(name="nightly")) == "nightly"
    assert str(LockFactory(name="import")) == "import"
    fire = FireFactory(schedule="nightly")
    assert str(fire) == f"nightly at {fire.boundary}"
