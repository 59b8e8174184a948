import itertools
import sys

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from testproject.settings import options

from .processes import Process, is_pooled, manage, may_refuse_transactions


@pytest.fixture
def start(tmp_path, transactional_db):
    """Start a management command, or with ``argv=`` any program, on the test database."""
    started = []
    numbers = itertools.count()

    def start_one(*args, argv=None, **env):
        output = tmp_path / f"process-{next(numbers)}.txt"
        process = Process(argv or manage(*args), output, **env)
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()


@pytest.fixture
def statements(db):
    """The statements that the test has sent so far: ``len(statements)``, ``statements[0]``."""
    with CaptureQueriesContext(connection) as captured:
        yield captured


@pytest.fixture
def isolation(request, monkeypatch):
    """Let connections that other threads open from now on have the isolation level."""
    conf = connection.settings_dict
    for name, option in options(conf, "isolation_level", request.param).items():
        monkeypatch.setitem(conf["OPTIONS"], name, option)


@pytest.fixture
def only_on(request):
    """Skip a test that concerns one database: ``only_on("postgresql")``."""

    def check(*vendors):
        if connection.vendor not in vendors:
            pytest.skip(f"concerns {', '.join(vendors)}")

    return check


@pytest.fixture
def own_sessions(db):
    """Skip a test that needs sessions of its own where a pooler shares them out."""
    if is_pooled():
        pytest.skip("a pooler shares the sessions out")


@pytest.fixture
def own_transactions(db):
    """Skip a test that has transactions of its own, and does not try them again, where it must."""
    if may_refuse_transactions():
        pytest.skip("whoever opens a transaction here must be ready to try it again")


@pytest.fixture
def race(start, tmp_path):
    """Start so many children on a program, ready to go; they wait for files in tmp_path."""

    def start_all(program, many):
        argvs = [[sys.executable, "-c", program, str(tmp_path), str(n)] for n in range(many)]
        racers = [start(argv=argv) for argv in argvs]
        for racer in racers:
            racer.until_says("ready")
        return racers

    return start_all
