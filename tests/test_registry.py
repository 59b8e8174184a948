import subprocess
import sys
import textwrap

import pytest

import django_alkstore
from django_alkstore import AlkstoreError, AlreadyRegistered, InvalidName, InvalidOption
from django_alkstore.registry import Registry, autodiscover, deliveries, handlers

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
