import pytest
from django.core.checks import Error, Warning, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_alkstore import sql
from django_alkstore.models import Count, Fire, Job, Lock, Schedule

pytestmark = pytest.mark.django_db  # Django's own checks of a model ask what its database can


class Apart:
    """A router that writes one of our models elsewhere."""

    def __init__(self, model):
        self.model = model

    def db_for_write(self, model, **hints):
        return "elsewhere" if model is self.model else None


class Together:
    def db_for_write(self, model, **hints):
        return "elsewhere" if model._meta.app_label == "django_alkstore" else None


class KeptOut:
    """A router that lets none of our tables be made."""

    def allow_migrate(self, db, app_label, **hints):
        return False if app_label == "django_alkstore" else None


def ours(**options):
    found = run_checks(**options)
    return [message for message in found if message.id.startswith("django_alkstore.")]


def ids(**options):
    return [message.id.removeprefix("django_alkstore.") for message in ours(**options)]


def of_the_database():
    return ids(databases=["default"])


def test_a_plain_project_passes():
    assert ours() == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"QUEUE": {}}, "'QUEUES' is the nearest"),
        ({"QUEUES": {"a": {"max_attempts": 0}}}, "expected max_attempts to be"),
        ({"OUTBOXES": {"__alkstore_x": {}}}, "reserved"),
        (None, "expected ALKSTORE to be a dict, got None"),
    ],
    ids=["unknown key", "wrong value", "reserved name", "no dict"],
)
def test_wrong_settings_are_an_error_that_says_what(settings, given, words):
    settings.ALKSTORE = given
    (message,) = ours()
    assert (message.id, type(message)) == ("django_alkstore.E001", Error)
    assert words in message.msg


@pytest.mark.parametrize("model", [Job, Schedule, Fire, Lock, Count])
def test_models_in_two_databases_are_an_error_that_says_where_each_is(settings, model):
    settings.DATABASE_ROUTERS = [Apart(model)]
    (message,) = ours()
    assert (message.id, type(message)) == ("django_alkstore.E002", Error)
    assert f"{model.__name__} in 'elsewhere'" in message.msg


def test_models_in_one_other_database_pass(settings):
    settings.DATABASE_ROUTERS = [Together()]
    assert ours() == []


def test_both_errors_are_reported_at_once(settings):
    settings.ALKSTORE = {"NOTIFY": 1}
    settings.DATABASE_ROUTERS = [Apart(Lock)]
    assert {message.id for message in ours()} == {"django_alkstore.E001", "django_alkstore.E002"}


def test_the_check_command_fails_on_them(settings):
    settings.ALKSTORE = {"NOTIFY": 1}
    with pytest.raises(SystemCheckError, match="django_alkstore.E001"):
        call_command("check")


def test_a_project_as_the_readme_has_it_passes_with_the_database_too():
    assert ours(databases=["default"], include_deployment_checks=True) == []


def test_a_database_that_the_router_keeps_us_out_of_is_an_error(settings):
    settings.DATABASE_ROUTERS = [KeptOut()]
    (message,) = ours()
    assert (message.id, type(message)) == ("django_alkstore.E003", Error)
    assert "our tables in 'default', got no for Job, " in message.msg


def test_a_name_of_a_queue_and_an_outbox_is_warned_of(settings):
    settings.ALKSTORE = {"QUEUES": {"a": {}, "b": {}}, "OUTBOXES": {"b": {}, "c": {}}}
    (message,) = ours()
    assert (message.id, type(message)) == ("django_alkstore.W004", Warning)
    assert message.msg == "expected 'b' to be a queue or an outbox, got both"


# -- with the database ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "id"),
    [
        ("transaction_mode", "DEFERRED", "W005"),
        ("transaction_mode", None, "W005"),
        ("timeout", 2, "W007"),
        ("timeout", 9.9, "W007"),
    ],
)
def test_sqlite_that_is_not_set_up_for_writers_is_warned_of(
    monkeypatch, only_on, option, value, id
):
    only_on("sqlite")
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], option, value)
    assert of_the_database() == [id]


def test_sqlite_with_its_own_defaults_is_warned_of(monkeypatch, only_on):
    only_on("sqlite")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    assert of_the_database() == ["W005", "W007"]


@pytest.mark.django_db(transaction=True)
def test_sqlite_without_wal_is_warned_of(only_on):
    only_on("sqlite")
    try:
        sql.engine().query("PRAGMA journal_mode = DELETE", {})
        assert of_the_database() == ["W006"]
    finally:
        sql.engine().query("PRAGMA journal_mode = WAL", {})


def test_local_time_on_mysql_is_warned_of(settings, only_on):
    only_on("mysql")
    settings.USE_TZ = False
    assert of_the_database() == ["W008"]


def test_local_time_elsewhere_is_not(settings, only_on):
    only_on("sqlite", "postgresql")
    settings.USE_TZ = False
    assert of_the_database() == []


@pytest.mark.django_db(transaction=True)
def test_a_column_that_compares_names_loosely_is_warned_of(only_on):
    only_on("mysql")
    column = "ALTER TABLE django_alkstore_lock MODIFY owner varchar(255) CHARACTER SET {} NOT NULL"
    try:
        sql.engine().execute(column.format("utf8mb4 COLLATE utf8mb4_general_ci"), {})
        assert of_the_database() == ["W009"]
    finally:
        sql.engine().execute(column.format("utf8mb4 COLLATE utf8mb4_bin"), {})


def test_without_being_asked_to_no_check_touches_the_database(statements):
    run_checks()
    assert [query["sql"] for query in statements if "alkstore" in query["sql"]] == []


def test_a_missing_migration_is_an_error_when_deploying():
    newest = MigrationLoader(connection).graph.leaf_nodes("django_alkstore")[0]
    MigrationRecorder(connection).record_unapplied(*newest)
    assert ids(include_deployment_checks=True) == ["E010"]
    assert of_the_database() == []  # which is what migrate itself asks


def test_a_worker_in_debug_is_warned_of_when_deploying(settings):
    settings.DEBUG = True
    assert ids(include_deployment_checks=True) == ["W011"]
    assert ids() == []


def test_wrong_settings_hide_no_traceback_behind_other_checks(settings):
    settings.ALKSTORE = {"NOTIFY": 1}
    assert ids(databases=["default"], include_deployment_checks=True) == ["E001"]
