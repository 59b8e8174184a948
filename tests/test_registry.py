import subprocess
import sys
import textwrap

import pytest

import django_alkstore
from django_alkstore import (
    AlkstoreError,
    AlreadyRegistered,
    InvalidName,
    InvalidOption,
    InvalidSpec,
)
from django_alkstore.registry import Declarations, Registry, autodiscover, deliveries, handlers
from django_alkstore.timetables import plan

from .processes import PATIENCE, ROOT


@pytest.fixture
def registry():
    return Registry("outbox", "delivery")


def send(job):
    """A delivery."""


class Mailer:
    def send(self, job):
        """A delivery that is a method."""


# -- registering ----------------------------------------------------------------------------------


def test_a_registered_callable_is_found_by_its_name(registry):
    assert registry.register("receipts")(send) is send
    assert registry.get("receipts") is send
    assert registry.get("Receipts") is None


def test_names_are_listed_in_order(registry):
    for name in ("b", "a"):
        registry.register(name)(send)
    assert registry.names() == ["a", "b"]


def test_a_second_callable_for_a_name_is_refused_and_the_first_stays(registry):
    registry.register("receipts")(send)
    sentence = "^expected outbox 'receipts' to have one delivery, got a second$"
    with pytest.raises(AlreadyRegistered, match=sentence):
        registry.register("receipts")(print)
    assert registry.get("receipts") is send


def test_the_same_callable_may_be_registered_again(registry):
    registry.register("receipts")(send)
    assert registry.register("receipts")(send) is send


def test_one_bound_method_is_the_same_callable_each_time_it_is_asked_for(registry):
    mailer = Mailer()
    registry.register("receipts")(mailer.send)
    registry.register("receipts")(mailer.send)
    with pytest.raises(AlreadyRegistered):
        registry.register("receipts")(Mailer().send)


@pytest.mark.parametrize("name", ["", "a b", "__alkstore_x", None, send], ids=str)
@pytest.mark.parametrize("decorate", [django_alkstore.delivery, django_alkstore.handler])
def test_a_wrong_name_is_refused_where_it_is_written(decorate, name):
    with pytest.raises(InvalidName, match="^expected the (outbox|queue) name to be .*, got "):
        decorate(name)


@pytest.mark.parametrize("call", [None, "send", 5])
def test_what_cannot_be_called_is_refused(registry, call):
    with pytest.raises(InvalidOption, match="^expected a delivery to be callable, got "):
        registry.register("receipts")(call)
    assert registry.names() == []


def test_an_outbox_and_a_queue_of_one_name_are_two_things():
    autodiscover()
    assert deliveries.get("receipts") is not None
    assert handlers.get("receipts") is None


def test_the_error_is_one_of_ours():
    assert issubclass(AlreadyRegistered, AlkstoreError)


# -- declaring schedules --------------------------------------------------------------------------


@pytest.fixture
def declarations():
    return Declarations()


def test_a_schedule_declared_above_a_handler_has_its_dotted_path_for_a_name(declarations):
    assert declarations.declare("@every 5m", queue="mails")(send) is send
    assert declarations.plans() == {"tests.test_registry.send": plan("@every 5m", "mails")}


def test_a_schedule_may_be_given_another_name_and_all_that_schedule_takes(declarations):
    options = {"timezone": "Europe/London", "overlap": "skip", "priority": 0, "payload": {"a": 1}}
    declarations.declare("@cron 0 9 * * *", queue="mails", name="daily", **options)(send)
    assert declarations.plans() == {"daily": plan("@cron 0 9 * * *", "mails", **options)}


def test_a_handler_may_have_several_schedules(declarations):
    declarations.declare("@every 5m", queue="mails")(send)
    declarations.declare("@every 1h", queue="mails", name="hourly")(send)
    assert len(declarations.plans()) == 2


def test_a_second_declaration_of_a_name_is_refused_and_the_first_stays(declarations):
    declarations.declare("@every 5m", queue="mails")(send)
    with pytest.raises(AlreadyRegistered, match="to be declared once, got a second declaration$"):
        declarations.declare("@every 1h", queue="mails")(send)
    assert declarations.plans()["tests.test_registry.send"].spec == "@every 5m"


def test_the_same_declaration_may_come_again(declarations):
    for _ in range(2):
        declarations.declare("@every 5m", queue="mails")(send)
    assert len(declarations.plans()) == 1


@pytest.mark.parametrize("name", ["", "a b", "__alkstore_x", 5, send], ids=str)
def test_a_wrong_name_of_a_schedule_is_refused(declarations, name):
    with pytest.raises(InvalidName, match="^expected the schedule name to be .*, got "):
        declarations.declare("@every 5m", queue="mails", name=name)(send)
    assert declarations.plans() == {}


def test_a_function_inside_another_needs_a_name(declarations):
    def inner(job):
        """A handler that has no path of its own."""

    with pytest.raises(InvalidName, match="<locals>"):
        declarations.declare("@every 5m", queue="mails")(inner)
    declarations.declare("@every 5m", queue="mails", name="inner")(inner)
    assert list(declarations.plans()) == ["inner"]


@pytest.mark.parametrize(
    ("error", "args", "given"),
    [
        (InvalidSpec, ("0 9 * * *",), {"queue": "mails"}),
        (InvalidSpec, (None,), {"queue": "mails"}),
        (InvalidName, ("@every 5m",), {"queue": "a b"}),
        (InvalidOption, ("@every 5m",), {"queue": "mails", "timezone": "Nowhere/None"}),
        (InvalidOption, ("@every 5m",), {"queue": "mails", "jitter": -1}),
        (TypeError, ("@every 5m",), {}),
        (TypeError, ("@every 5m", "mails"), {}),
        (TypeError, ("@every 5m",), {"queue": "mails", "delay": 5}),
    ],
)
def test_a_wrong_schedule_is_refused_where_it_is_written(error, args, given):
    with pytest.raises(error):
        django_alkstore.scheduled(*args, **given)


# -- discovering ----------------------------------------------------------------------------------


def test_the_jobs_module_of_each_app_is_imported():
    autodiscover()
    assert "testproject.shop.jobs" in sys.modules
    assert "receipts" in deliveries.names()


@pytest.fixture
def discover(tmp_path):
    """Discover, in a fresh interpreter, the jobs of an app whose ``jobs.py`` is ``text``."""

    def run(text):
        app = tmp_path / "late_app"
        app.mkdir()
        (app / "__init__.py").touch()
        (app / "jobs.py").write_text(textwrap.dedent(text))
        script = """
            import django
            from django.conf import settings
            settings.configure(INSTALLED_APPS=["django_alkstore", "late_app"])
            django.setup()
            from django_alkstore.registry import autodiscover, deliveries
            autodiscover()
            print(deliveries.names())
        """
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    return run


def test_a_decorator_in_jobs_py_registers(discover):
    done = discover("""
        from django_alkstore import delivery

        @delivery("mail")
        def send(job): ...
    """)
    assert (done.stdout, done.stderr) == ("['mail']\n", "")


@pytest.mark.parametrize(
    "text", ["1 / 0", "import nowhere_to_be_found", "def"], ids=["raises", "imports", "syntax"]
)
def test_an_error_inside_a_jobs_module_is_not_swallowed(discover, text):
    done = discover(text)
    assert done.returncode == 1
    assert "jobs.py" in done.stderr
