"""The demo: a shop, its workers, and what goes wrong in real life, in about ten seconds.

The workers are the real commands in processes of their own, and one of them is really killed. Every
wait has a bound, and no process outlives the demo, however it ends.
"""

import secrets
import shlex
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from django_alkstore import StopToken, outbox, schedule
from django_alkstore.models import Fire, Job
from testproject.settings import sqlite_database
from testproject.shop.children import MANAGE, Children
from testproject.shop.jobs import RECEIVER
from testproject.shop.models import Order
from testproject.shop.orders import SoldOut, place_order
from testproject.shop.receiver import Receiver
from testproject.shop.tally import Tally

DEFAULT_FILE = settings.BASE_DIR / "demo.sqlite3"
EVERY = 1  # seconds between two stock reports
BOUNDARIES = 3  # to wait for, at least
PATIENCE = 60.0  # seconds for any wait; on an idle machine none takes five
CUSTOMERS = [
    ("ada@example.com", "a book"),
    ("brian@example.com", "a chair"),
    ("chloe@example.com", "a lamp"),
    ("dev@example.com", "a kettle"),
    ("elif@example.com", "a teapot"),
]
UNLUCKY = ("fred@example.com", "an umbrella")  # the first delivery of the receipt fails
CUT_OFF = ("grace@example.com", "a clock")  # the worker is killed while it delivers


class Command(BaseCommand):
    help = "Run the demo shop with its workers on a fresh SQLite file. Takes about ten seconds."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--file", type=Path, default=DEFAULT_FILE,
            help="where to put the database; must not exist (default: %(default)s, replaced)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        self.began = time.monotonic()
        self.stop = StopToken()
        file = fresh(options["file"])
        with cancelled_by_signals(self.stop), use_database(file):
            self.migrate(file)
            self.conclude(self.run(file))
            self.invite(file)

    # -- the story ------------------------------------------------------------------------------

    def migrate(self, file: Path) -> None:
        call_command("migrate", verbosity=0)
        self.say(f"migrated {shown(file)} (SQLite, WAL)")

    def run(self, file: Path) -> Tally:
        """The shop's day; what was counted."""
        log = file.with_name(f"{file.name}.log")
        with Receiver(self.say) as self.receiver:
            env = {"ALKSTORE_DATABASE_URL": url_of(file), RECEIVER: self.receiver.url}
            with Children(log, {**env, "no_proxy": "127.0.0.1"}) as self.children:
                self.start_workers()
                self.place_orders()
                self.refuse_an_order()
                self.fail_a_delivery()
                self.kill_the_worker()
                self.wait_for_the_rest()
                self.stop_workers()
            return self.count()

    def start_workers(self) -> None:
        self.say(f"the receiver of receipts listens on {self.receiver.url}")
        schedule("stock-report", f"@every {EVERY}s", "stock-reports", {"report": "stock"})
        self.scheduler = self.start("run_schedules")
        self.worker = self.start("run_outbox")

    def place_orders(self) -> None:
        for email, item in CUSTOMERS:
            self.place(email, item)

    def refuse_an_order(self) -> None:
        with suppress(SoldOut):
            place_order("uma@example.com", "a unicorn")
        self.say("a unicorn is sold out: its order is rolled back, and its receipt with it")

    def fail_a_delivery(self) -> None:
        self.receiver.fail_first(UNLUCKY[0])
        number = self.place(*UNLUCKY, backoff=1)
        self.wait(f"the receipt of order {number} to fail", lambda: self.receiver.failed)
        # All of it, so that the worker that is killed next holds no other claim.
        self.wait("it to be sent again (backoff: 1 s)", lambda: not waiting_receipts())

    def kill_the_worker(self) -> None:
        """Kill it once the receiver has the request, and let another find what is left."""
        self.receiver.hold_first(CUT_OFF[0])
        number = self.place(*CUT_OFF, visibility_timeout=3)
        self.wait(f"the worker to send the receipt of order {number}", self.receiver.holds.is_set)
        self.children.kill(self.worker)
        self.say(f"killed run_outbox (pid {self.worker.pid}, SIGKILL) before it had the answer")
        self.receiver.let_go.set()
        self.worker = self.start("run_outbox")

    def wait_for_the_rest(self) -> None:
        self.wait("the outbox to be empty (the dead worker's claim lapses after 3 s)",
                  lambda: not waiting_receipts())  # fmt: skip
        self.say("the outbox is empty")
        self.wait(f"{BOUNDARIES} stock reports", lambda: Fire.objects.count() >= BOUNDARIES)

    def stop_workers(self) -> None:
        for name, child in ("run_schedules", self.scheduler), ("run_outbox", self.worker):
            code = self.children.stop(child)
            self.say(f"stopped {name} (pid {child.pid}, SIGTERM): exit code {code}")
            if code != 0:
                self.children.complain(f"{name} was asked to stop and ended with {code}, not 0")

    def count(self) -> Tally:
        """Taken with the workers stopped, so nothing moves."""
        cut_off = Order.objects.filter(email=CUT_OFF[0])
        return Tally(
            tried=len(CUSTOMERS) + 3,
            orders=list(Order.objects.values_list("pk", "email")),
            mailed=self.receiver.mailed,
            failed=self.receiver.failed,
            cut_off=list(cut_off.values_list("pk", "email")),
            duplicates=self.receiver.duplicates,
            in_outbox=waiting_receipts(),
            every=timedelta(seconds=EVERY),
            boundaries=list(Fire.objects.values_list("boundary", flat=True)),
            reports=list(stock_reports().values_list("scheduled_for", flat=True)),
        )

    def conclude(self, tally: Tally) -> None:
        """Print the table; raises CommandError if anything was lost or leaked."""
        self.stdout.write(f"\n{tally.table()}\n")
        if faults := tally.faults():
            raise CommandError("\n".join(["It went wrong.", *faults]))
        self.stdout.write("Nothing was lost, nothing leaked.")

    def invite(self, file: Path) -> None:
        """Say how to look at it in the admin."""
        password = secrets.token_urlsafe(9)
        get_user_model().objects.create_superuser("demo", password=password)
        self.stdout.write(
            f"\nOrders, fires, and stock reports that wait in their queue are in the admin:\n"
            f"  SHOP_DEBUG=1 {shlex.quote(f'ALKSTORE_DATABASE_URL={url_of(file)}')} "
            f"{shlex.quote(shown(sys.executable))} {shlex.quote(shown(MANAGE))} runserver\n"
            f"  http://127.0.0.1:8000/admin/  user: demo  password: {password}"
        )

    # -- its words ------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.stdout.write(f"{time.monotonic() - self.began:5.1f} s  {text}")
        self.stdout.flush()

    def start(self, command: str) -> Any:
        child = self.children.start(command)
        self.say(f"started {command} (pid {child.pid})")
        return child

    def place(self, email: str, item: str, **receipt_options: Any) -> int:
        order = place_order(email, item, **receipt_options)
        given = "".join(f", {name}={value}" for name, value in receipt_options.items())
        self.say(f"{order} for {email}{given}")
        return order.pk

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait, and say so each second; raises CommandError if it takes too long."""
        began = told = time.monotonic()
        while not condition():
            if self.stop.wait(0.05):
                raise CommandError("stopped before the end", returncode=130)
            self.children.check()
            now = time.monotonic()
            if now - began > PATIENCE:
                self.children.complain(f"waited {PATIENCE:.0f} s for {what}, in vain")
            if now - told >= 1:
                told = now
                self.say(f"  waiting for {what}; {Fire.objects.count()} stock reports so far")


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def waiting_receipts() -> int:
    return Job.objects.filter(queue=outbox("receipts").queue.name).count()


def stock_reports() -> Any:
    return Job.objects.filter(queue="stock-reports")


def shown(path: object) -> str:
    """A path as one would type it here."""
    with suppress(ValueError):
        return str(Path(str(path)).absolute().relative_to(Path.cwd()))
    return str(path)


def fresh(file: Path) -> Path:
    """Make place for a new database; raises CommandError rather than delete one it did not make."""
    file = file.absolute()
    if file != DEFAULT_FILE and file.exists():
        raise CommandError(f"expected --file to be a path where nothing is, got {str(file)!r}")
    if not file.parent.is_dir():
        raise CommandError(f"expected --file to be in a directory, got {str(file)!r}")
    for suffix in "", "-wal", "-shm", ".log":
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    return file


@contextmanager
def use_database(file: Path) -> Iterator[None]:
    """Let the default alias be a SQLite file, whatever database the settings name."""
    before = connections.settings["default"]
    connections["default"].close()
    connections.settings.update(connections.configure_settings({"default": sqlite_database(file)}))
    del connections["default"]
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = before
        del connections["default"]


@contextmanager
def cancelled_by_signals(stop: StopToken) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM cancel ``stop``, however often: the children are to be ended first."""

    def cancel(signum: int, frame: object) -> None:
        stop.cancel()

    previous = {s: signal.signal(s, cancel) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
