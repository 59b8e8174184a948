"""The demo shop: its verdict, its view, and the demo itself as a process."""

import os
import re
import signal
import sqlite3
from datetime import datetime, timedelta, timezone

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.urls import reverse

from django_alkstore.models import Job
from testproject.shop.management.commands.demo import Command
from testproject.shop.models import Order
from testproject.shop.tally import Tally

from .processes import until

ADA, FRED, GRACE = (1, "ada@example.com"), (2, "fred@example.com"), (3, "grace@example.com")
NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
SECONDS = [NOON + timedelta(seconds=n) for n in range(3)]


def tally(**differing):
    """A demo in which all went well, but for what is given."""
    well = {
        "tried": 4,
        "orders": [ADA, FRED, GRACE],
        "mailed": [ADA, GRACE, FRED],
        "failed": [FRED],
        "cut_off": [GRACE],
        "duplicates": [GRACE],
        "boundaries": SECONDS,
        "reports": SECONDS,
    }
    return Tally(**{**well, **differing})


# -- the verdict ----------------------------------------------------------------------------------


def test_a_demo_in_which_all_went_well_has_no_faults():
    assert tally().faults() == []
    counts = {what: count for what, count, _ in tally().rows()}
    assert counts == {
        "ordered": 4,
        "rolled back": 1,
        "delivered": 3,
        "retried": 1,
        "recovered": 1,
        "duplicates seen by the receiver": 1,
        "fires per boundary": 1,
    }


@pytest.mark.parametrize(
    ("differing", "fault"),
    [
        ({"mailed": [FRED, GRACE]}, "lost: no receipt was mailed for order 1"),
        ({"mailed": [ADA, ADA, FRED, GRACE]}, "leaked: a receipt was mailed without order 1"),
        ({"orders": [FRED, GRACE]}, "leaked: a receipt was mailed without order 1"),
        ({"duplicates": []}, "not delivered again after its worker was killed: order 3"),
        ({"in_outbox": 2}, "2 receipts are still in the outbox"),
        ({"boundaries": []}, "no boundary of the schedule fired"),
        (
            {"boundaries": [SECONDS[0], SECONDS[2]]},
            "lost: no fire is recorded for boundary 12:00:01",
        ),
        ({"reports": SECONDS[:2]}, "lost: no job was enqueued for boundary 12:00:02"),
        (
            {"reports": [*SECONDS, NOON]},
            "leaked: a job too many was enqueued for boundary 12:00:00",
        ),
    ],
)
def test_what_was_lost_or_leaked_is_said_and_fails_the_demo(differing, fault):
    assert tally(**differing).faults() == [fault]
    with pytest.raises(CommandError, match=fault):
        Command().conclude(tally(**differing))


def test_a_receipt_of_a_rolled_back_order_is_no_other_orders_receipt():
    uma = (ADA[0], "uma@example.com")  # SQLite gives the number of a rolled back row again
    assert tally(mailed=[uma, FRED, GRACE]).faults() == [
        "lost: no receipt was mailed for order 1",
        "leaked: a receipt was mailed without order 1",
    ]


def test_the_demo_replaces_no_database_but_its_own(tmp_path):
    precious = tmp_path / "precious.sqlite3"
    precious.write_text("precious")
    with pytest.raises(CommandError, match="where nothing is"):
        call_command("demo", file=precious)
    assert precious.read_text() == "precious"


# -- the view -------------------------------------------------------------------------------------


@pytest.fixture
def order(client, transactional_db):
    """Order over HTTP; the status."""
    client.raise_request_exception = False

    def post(**differing):
        form = {"email": "ada@example.com", "item": "a book", **differing}
        return client.post(reverse("place-order"), form).status_code

    return post


def receipts():
    return list(Job.objects.values_list("payload__order", flat=True))


def test_an_order_is_placed_with_its_receipt(order):
    assert order() == 201
    assert receipts() == [Order.objects.get().pk]


def test_what_is_sold_out_leaves_neither_order_nor_receipt(order):
    assert order(item="a unicorn") == 409
    assert receipts() == []
    assert not Order.objects.exists()


def test_a_request_that_fails_takes_the_order_and_its_receipt_back(order, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert order(days="soon") == 500
    assert receipts() == []
    assert not Order.objects.exists()


# -- the demo -------------------------------------------------------------------------------------


@pytest.fixture
def demo(start, only_on, tmp_path):
    """Start the demo; it brings its own database."""
    only_on("sqlite")
    demos = []

    def start_demo():
        demos.append(start("demo", "--file", str(tmp_path / "demo.sqlite3")))
        return demos[-1]

    yield start_demo
    for process in demos:
        if process.popen.poll() is None:
            process.terminate()


def workers(process):
    """The processes that the demo says it started: name and pid."""
    return re.findall(r"started (\w+) \(pid (\d+)\)", process.text)


def alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def assert_left_nothing_running(process):
    assert not [name for name, pid in workers(process) if alive(pid)]


def test_the_demo_loses_and_leaks_nothing(demo, tmp_path):
    process = demo()
    assert process.wait(120) == 0, process.text
    counts = dict(re.findall(r"^  (\w[\w ]+?) {2,}(\d+)(?:  .*)?$", process.text, re.MULTILINE))
    assert counts == {
        "ordered": "8",
        "rolled back": "1",
        "delivered": "7",
        "retried": "1",
        "recovered": "1",
        "duplicates seen by the receiver": "1",
        "fires per boundary": "1",
    }
    assert "Nothing was lost, nothing leaked." in process.text
    assert [name for name, _ in workers(process)] == ["run_schedules", "run_outbox", "run_outbox"]
    assert_left_nothing_running(process)
    with sqlite3.connect(tmp_path / "demo.sqlite3") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("SELECT COUNT(*) FROM shop_order").fetchone() == (7,)


def test_a_demo_whose_scheduler_dies_fails_and_says_so(demo):
    process = demo()
    process.until_says("started run_schedules")
    os.kill(int(workers(process)[0][1]), signal.SIGKILL)
    assert process.wait(120) == 1
    assert "run_schedules ended by itself with exit code -9" in process.text
    assert_left_nothing_running(process)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_nothing_running(demo, signum):
    process = demo()
    until(lambda: len(workers(process)) == 2)
    process.signal(signum)
    assert process.wait(120) == 130
    assert "stopped before the end" in process.text
    assert_left_nothing_running(process)
