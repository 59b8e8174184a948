"""The outbox: a message exists exactly when the business row does, and is delivered at least once."""

import sys
from contextlib import contextmanager, suppress
from itertools import chain

import pytest
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from django_alkstore import (
    InvalidOption,
    ReservedName,
    enqueue_tx,
    get_job,
    lock,
    outbox,
    outbox_enqueue_tx,
    queue,
    schedule,
)
from django_alkstore.models import Job
from testproject.shop.models import Order

from .factories import JobFactory, OrderFactory, ago
from .processes import across_connections, held, in_threads

pytestmark = pytest.mark.django_db


def receipts():
    """A handle that has not swept yet."""
    return outbox("receipts")


def place_order():
    """The business write, and the message next to it."""
    order = OrderFactory()
    return receipts().enqueue_tx({"order": order.pk})


def orders_and_messages():
    return Order.objects.count(), Job.objects.count()


class Refused(Exception):
    """What the business code raises."""


def refuse(job):
    raise Refused("no such address")


# -- the message and the business row -------------------------------------------------------------


def outer_rolls_back():
    with suppress(Refused), transaction.atomic():
        place_order()
        raise Refused


def inner_savepoint_rolls_back_and_outer_commits():
    with transaction.atomic(), suppress(Refused), transaction.atomic():
        place_order()
        raise Refused


def inner_commits_and_outer_rolls_back():
    with suppress(Refused), transaction.atomic():
        with transaction.atomic():
            place_order()
        raise Refused


def inner_without_savepoint_fails():
    with transaction.atomic():
        place_order()
        with suppress(Refused), transaction.atomic(savepoint=False):
            place_order()
            raise Refused


def caught_outside_the_inner_block():
    with transaction.atomic():
        place_order()
        with suppress(Refused), transaction.atomic():
            place_order()
            raise Refused


def caught_inside_the_block():
    with transaction.atomic(), suppress(Refused):
        place_order()
        raise Refused


def set_to_roll_back():
    with transaction.atomic():
        place_order()
        transaction.set_rollback(True)


def commits():
    with transaction.atomic(), transaction.atomic():
        place_order()


@across_connections
@pytest.mark.parametrize(
    ("block", "committed"),
    [
        (outer_rolls_back, 0),
        (inner_savepoint_rolls_back_and_outer_commits, 0),
        (inner_commits_and_outer_rolls_back, 0),
        (inner_without_savepoint_fails, 0),
        (caught_outside_the_inner_block, 1),
        (caught_inside_the_block, 1),
        (set_to_roll_back, 0),
        (commits, 1),
    ],
)
def test_a_message_exists_exactly_when_the_order_does(block, committed):
    block()
    assert in_threads(orders_and_messages) == [(committed, committed)]
    delivered = []
    while receipts().run_once("w", lambda job: delivered.append(job.payload["order"])):
        pass
    assert delivered == [order.pk for order in Order.objects.all()]


def order_view(request):
    place_order()
    if "crash" in request.GET:
        raise Refused
    return HttpResponse(status=int(request.GET["status"]))


urlpatterns = [path("order/", order_view)]


@pytest.mark.django_db(transaction=True)  # the middleware needs every app
@pytest.mark.parametrize(
    ("query", "status", "committed"),
    [("crash=1", 500, 0), ("status=200", 200, 1), ("status=500", 500, 1)],
)
def test_with_atomic_requests_a_view_that_raises_leaves_no_message(
    query, status, committed, settings, monkeypatch
):
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    response = Client(raise_request_exception=False).get(f"/order/?{query}")
    assert response.status_code == status
    # A view that returns its 500 has not failed, to Django: both are there.
    assert orders_and_messages() == (committed, committed)


@across_connections
def test_nothing_is_delivered_before_the_commit():
    delivered = []

    def deliver():
        return receipts().run_once("w", lambda job: delivered.append(job.payload))

    @contextmanager
    def order_not_committed():
        with transaction.atomic():
            place_order()
            yield

    with held(order_not_committed):
        assert deliver() is False
    assert deliver() is True
    assert len(delivered) == 1


@across_connections
def test_a_message_committed_late_with_a_lower_id_is_still_delivered(only_on):
    only_on("postgresql", "mysql")  # SQLite has one writer at a time
    delivered = []

    def deliver():
        return receipts().run_once("w", lambda job: delivered.append(job.id))

    @contextmanager
    def order_not_committed():
        with transaction.atomic():
            late.append(place_order())
            yield

    late = []
    with held(order_not_committed):
        early = receipts().enqueue({})
        assert late[0] < early
        assert deliver() is True
        assert deliver() is False
    assert deliver() is True
    assert delivered == [early, late[0]]


DIES_AFTER_COMMIT = """
import os, signal
import django; django.setup()
from django.db import transaction
from django_alkstore import outbox
from testproject.shop.models import Order
with transaction.atomic():
    order = Order.objects.create(email="ada@example.com", item="a book")
    outbox("receipts").enqueue_tx({"order": order.pk})
os.kill(os.getpid(), signal.SIGKILL)
"""


@across_connections
def test_a_message_is_delivered_though_its_process_was_killed_right_after_the_commit(start):
    assert start(argv=[sys.executable, "-c", DIES_AFTER_COMMIT]).wait() == -9
    delivered = []
    assert receipts().run_once("w", lambda job: delivered.append(job.payload["order"])) is True
    assert delivered == [Order.objects.get().pk]


DIES_IN_DELIVERY = """
import os, signal
import django; django.setup()
from django_alkstore import outbox
def deliver(job):
    print(job.idempotency_key, job.attempts, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
outbox("receipts").run_once("killed", deliver)
"""


@across_connections
def test_a_message_whose_worker_was_killed_before_the_ack_is_delivered_again(start):
    receipts().enqueue({})
    worker = start(argv=[sys.executable, "-c", DIES_IN_DELIVERY])
    assert worker.wait() == -9
    key, attempts = worker.text.split()
    assert attempts == "1"
    assert receipts().run_once("w", print) is False
    Job.objects.update(due_at=ago(1))
    delivered = []
    assert receipts().run_once("w", lambda job: delivered.append(job)) is True
    assert (delivered[0].idempotency_key, delivered[0].attempts) == (key, 2)
    assert not Job.objects.exists()


# -- delivering -----------------------------------------------------------------------------------


def test_a_message_that_always_fails_holds_up_no_other():
    bad = receipts().enqueue({}, max_attempts=2, backoff=0, priority=1)
    good = receipts().enqueue_many([{}] * 5)
    delivered = []

    def deliver(job):
        if job.id == bad:
            raise Refused("no such address")
        delivered.append(job.id)

    while receipts().run_once("w", deliver):
        pass
    assert delivered == good
    row = Job.objects.get()
    assert (row.id, row.state, row.attempts) == (bad, "dead", 2)
    assert row.last_error == "no such address"


def test_a_failed_message_lets_the_next_pass_it_while_it_waits():
    first, second = receipts().enqueue_many([{}, {}])
    assert receipts().run_once("w", refuse) is True
    delivered = []
    assert receipts().run_once("w", lambda job: delivered.append(job.id)) is True
    assert delivered == [second]
    assert get_job(first).state == "scheduled"


def test_a_message_has_one_key_on_every_attempt_and_no_two_messages_share_it():
    keys = []

    def deliver(job):
        keys.append(job.idempotency_key)
        raise Refused

    for name in ("receipts", "invoices"):
        for _ in range(2):
            outbox(name).enqueue({}, backoff=0, max_attempts=2)
        while outbox(name).run_once("w", deliver):
            pass
    assert len(keys) == 8
    assert sorted(keys) == sorted(key for key in set(keys) for _ in range(2))


def test_the_id_of_a_delivered_message_is_never_given_again():
    seen = set()
    for _ in range(3):
        seen.add(receipts().enqueue({}))
        receipts().run_once("w", lambda job: None)
    assert len(seen) == 3


def test_the_delivery_may_hold_its_claim_longer():
    def deliver(job):
        assert job.heartbeat(extend=1000) is True
        left.append((get_job(job.id).due_at - ago()).total_seconds())

    left = []
    receipts().enqueue({})
    receipts().run_once("w", deliver)
    assert left[0] == pytest.approx(1000, abs=10)


@across_connections
def test_three_workers_deliver_every_message_once():
    ids = receipts().enqueue_many([{}] * 150)

    def work():
        mine, handle = [], receipts()
        while handle.run_once("w", lambda job: mine.append(job.id)):
            pass
        return mine

    assert sorted(chain(*in_threads(work, work, work))) == ids


@pytest.mark.parametrize("delivery", [None, "print", 1])
def test_a_delivery_that_cannot_be_called_is_refused_before_any_statement(delivery, statements):
    with pytest.raises(InvalidOption, match="expected delivery to be callable"):
        receipts().run_once("w", delivery)
    assert len(statements) == 0


# -- its queue and its options --------------------------------------------------------------------


def test_the_backing_queue_is_reached_through_the_outbox_alone(statements):
    name = "__alkstore_outbox:receipts"
    for refused in (
        lambda: queue(name),
        lambda: enqueue_tx(name, {}),
        lambda: schedule("nightly", "@every 1h", name),
        lambda: outbox(name),
        lambda: outbox_enqueue_tx(name, {}),
        lambda: lock("__alkstore_scheduler"),
    ):
        with pytest.raises(ReservedName):
            refused()
    assert len(statements) == 0


def test_an_outbox_and_a_queue_of_one_name_are_apart():
    receipts().enqueue({})
    JobFactory(queue="receipts")
    assert queue("receipts").claim("w").ack()
    assert queue("receipts").claim("w") is None
    assert receipts().run_once("w", lambda job: None) is True
    assert receipts().run_once("w", lambda job: None) is False


def test_a_plain_handle_cannot_cancel_or_ack_a_message():
    id = receipts().enqueue({})
    assert queue("receipts").cancel(id) is False

    def deliver(job):
        assert queue("receipts").ack_batch([job]) == 0

    assert receipts().run_once("w", deliver) is True


def test_options_come_from_the_defaults_then_the_settings_then_the_call(settings):
    settings.ALKSTORE = {"OUTBOXES": {"receipts": {"max_attempts": 9, "visibility_timeout": 2.5}}}
    row = get_job(receipts().enqueue({}, visibility_timeout=7))
    assert (row.max_attempts, row.visibility_timeout, row.backoff) == (9, 7, 5)
    other = get_job(outbox("invoices").enqueue({}))
    assert (other.max_attempts, other.visibility_timeout, other.backoff) == (5, 60, 5)


def test_a_delivered_message_is_kept_where_the_outbox_retains(settings):
    settings.ALKSTORE = {"OUTBOXES": {"receipts": {"retention": 3600}}}
    id = receipts().enqueue({})
    receipts().run_once("w", lambda job: None)
    assert get_job(id).state == "done"


def test_the_longest_name_has_room_for_its_prefix():
    name = "n" * 128
    id = outbox(name).enqueue({})
    assert get_job(id).queue == f"__alkstore_outbox:{name}"
    assert outbox(name).run_once("w", lambda job: None) is True
