"""What the packages and modules may reach for, read from their source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import django_alkstore

from .processes import PATIENCE, ROOT

PACKAGE = ROOT / "django_alkstore"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in SOURCES}

# A module imports from the rows above its own, and in its own from those before it.
ROWS = [
    ["exceptions", "shutdown"],
    ["names", "backoff", "zones", "cron", "specs", "payloads", "options", "timetables", "failures"],
    ["conf", "registry", "signals"],
    ["models"],
    ["sql", "reads", "prunes", "surroundings", "wakeups"],
    ["counts", "retention"],
    ["queues", "locks"],
    ["outboxes", "schedules", "declared", "scheduler"],
    ["holds", "workers"],
    ["status", "operations", "ledgers"],
    ["words", "lists", "actions", "overview"],
    ["templatetags", "checks", "apps", "admin", "views", "urls", "testing", "management"],
    ["migrations"],
]
ORDER = [module for row in ROWS for module in row]
TOP_LEVEL = {"pyproject.toml", "django_alkstore", "tests", "testproject", "manage.py", "README.md"}

each_source = pytest.mark.parametrize("source", TREES)


def module_of(source):
    """The name that a file has in the table."""
    return source.split("/")[0].removesuffix(".py")


def imports(tree, source):
    """The full dotted name of all that a module imports, wherever in it."""
    package = ["django_alkstore", *source.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            home = [*above, node.module] if node.module else above
            yield from (".".join([*home, alias.name]) for alias in node.names)


def imported_modules(source):
    """Which modules of the package a module imports."""
    names = [name.split(".") for name in imports(TREES[source], source)]
    return {parts[1] for parts in names if parts[0] == "django_alkstore" and len(parts) > 1}


def run_without_settings(program):
    """What a fresh interpreter prints that has never heard of a Django project."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


# -- modules --------------------------------------------------------------------------------------


def test_every_module_has_its_row():
    assert {module_of(source) for source in TREES} - {"__init__"} <= set(ORDER)


@pytest.mark.parametrize("source", sorted(TREES.keys() - {"__init__.py"}))
def test_a_module_imports_only_from_the_rows_above_it(source):
    above = ORDER[: ORDER.index(module_of(source))]
    within = [module_of(source)] if "/" in source else []
    assert imported_modules(source) <= {*above, *within}


def test_only_the_verbs_of_a_row_go_by_the_packages_lazy_names():
    takers = {source for source in TREES if "django_alkstore" in imports(TREES[source], source)}
    assert {source for source in takers if not source.startswith("migrations/")} == {"models.py"}


def test_the_package_itself_imports_nothing_of_its_own():
    assert imported_modules("__init__.py") == set()


@each_source
def test_a_module_imports_the_standard_library_and_django_alone(source):
    roots = {name.split(".")[0] for name in imports(TREES[source], source)}
    assert roots <= {*sys.stdlib_module_names, "django", "django_alkstore"}


@each_source
def test_no_database_driver_is_imported_with_a_module(source):
    drivers = ("sqlite3", "django.db.backends.")
    top = ast.Module([node for node in TREES[source].body if not hasattr(node, "body")], [])
    assert not [name for name in imports(top, source) if name.startswith(drivers)]


@each_source
def test_the_vendor_of_a_database_is_asked_only_at_the_edge(source):
    asked = any(
        isinstance(node, ast.Attribute) and node.attr == "vendor"
        for node in ast.walk(TREES[source])
    )
    assert not asked or source in ("sql.py", "wakeups.py")


@each_source
def test_nothing_waits_for_a_commit_hook(source):
    names = {getattr(node, "attr", getattr(node, "id", None)) for node in ast.walk(TREES[source])}
    assert "on_commit" not in names


@each_source
def test_every_module_with_code_says_what_it_promises(source):
    tree = TREES[source]
    exempt = ("__init__.py", "migrations/")
    assert ast.get_docstring(tree) or source.startswith(exempt) or not tree.body


# -- the package ----------------------------------------------------------------------------------


def test_naming_a_queue_needs_neither_settings_nor_apps():
    done = run_without_settings("""if True:
        import django_alkstore
        print(django_alkstore.queue("reports"), django_alkstore.outbox("receipts"))
        from django.apps import apps
        from django.conf import settings
        print(django_alkstore.lock("rates").ttl, apps.ready, settings.configured)
    """)
    assert done.stdout == "<Queue reports> <Outbox receipts>\n60.0 False False\n", done.stderr


def test_importing_the_package_imports_no_module_of_it():
    done = run_without_settings("""if True:
        import sys, django_alkstore
        print([name for name in sys.modules if name.startswith(("django", "sqlite3"))])
    """)
    assert done.stdout == "['django_alkstore']\n", done.stderr


@pytest.mark.parametrize("name", django_alkstore.__all__)
def test_every_public_name_resolves_and_is_listed(name):
    value = getattr(django_alkstore, name)
    assert getattr(django_alkstore, name) is value
    assert name in dir(django_alkstore)


def test_a_star_import_brings_all_public_names():
    names = {}
    exec("from django_alkstore import *", names)  # noqa: S102
    assert set(django_alkstore.__all__) <= set(names)


@pytest.mark.parametrize("name", ["Nothing", "_HOMES_", "enqueue"])
def test_another_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"'django_alkstore' has no attribute '{name}'"):
        getattr(django_alkstore, name)
    with pytest.raises(ImportError):
        exec(f"from django_alkstore import {name}")  # noqa: S102


# -- the repository -------------------------------------------------------------------------------


def test_the_top_level_has_only_its_few_names():
    if not (ROOT / ".git").exists():
        pytest.skip("concerns a checkout")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    top = {Path(name).parts[0] for name in listed}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_no_module_has_a_name_that_says_nothing():
    said = {path.stem for path in SOURCES}
    assert not said & {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
