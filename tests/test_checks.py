import pytest
from django.core.checks import Error, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from django_alkstore.models import Fire, Job, Lock, Schedule

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


def ours():
    return [message for message in run_checks() if message.id.startswith("django_alkstore.")]


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


@pytest.mark.parametrize("model", [Job, Schedule, Fire, Lock])
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
