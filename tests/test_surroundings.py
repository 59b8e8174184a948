import threading

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_alkstore import surroundings
from django_alkstore.surroundings import Surroundings
from testproject.shop.models import Order

from .factories import OrderFactory
from .processes import across_connections, in_threads

pytestmark = across_connections


def around(*calls, owned=None):
    """What each call, made in turn in the same surroundings, returns."""
    here, results = Surroundings(owned), []
    for call in calls:
        here.call(lambda job, call=call: results.append(call()), None)
    return results


def other_connections_see():
    [orders] = in_threads(Order.objects.count)
    return orders


# -- language and time zone -----------------------------------------------------------------------


def test_a_handler_finds_the_settings_language_and_zone_whatever_the_caller_has():
    with translation.override("de"), timezone.override("Asia/Tokyo"):
        found = around(translation.get_language, timezone.get_current_timezone_name)
        assert (translation.get_language(), timezone.get_current_timezone_name()) == (
            "de",
            "Asia/Tokyo",
        )
    assert found == ["en-us", "UTC"]


@pytest.mark.parametrize(
    ("change", "look"),
    [
        (lambda: translation.activate("fr"), translation.get_language),
        (translation.deactivate_all, translation.get_language),
        (lambda: timezone.activate("Asia/Kolkata"), timezone.get_current_timezone_name),
    ],
    ids=["language", "no language", "zone"],
)
def test_what_a_handler_activates_reaches_neither_the_next_nor_the_caller(change, look):
    before = look()
    assert around(change, look)[1] == before
    assert look() == before


# -- transactions and connections -----------------------------------------------------------------


def leave_a_block_open():
    transaction.atomic().__enter__()
    OrderFactory()


def leave_autocommit_off():
    transaction.set_autocommit(False)
    OrderFactory()


def leave_a_block_broken():
    leave_a_block_open()
    with pytest.raises(DatabaseError):
        connection.cursor().execute("SELECT nonsense FROM nowhere")


def leave_a_closed_connection_in_a_block():
    leave_a_block_open()
    connection.close()


def leave_a_driver_connection_closed():
    connection.ensure_connection()
    connection.connection.close()


def leave_a_plain_sql_transaction():
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    OrderFactory()


LEFTOVERS = [
    leave_a_block_open,
    leave_autocommit_off,
    leave_a_block_broken,
    leave_a_closed_connection_in_a_block,
    leave_a_driver_connection_closed,
    connection.close,
]


@pytest.mark.parametrize("leave", LEFTOVERS, ids=lambda leave: leave.__name__)
def test_what_a_handler_leaves_open_or_broken_ends_with_it(leave):
    assert around(leave, Order.objects.count, OrderFactory)[1] == 0
    assert not connection.in_atomic_block
    assert other_connections_see() == 1


def test_a_transaction_begun_in_plain_sql_ends_with_its_handler(only_on):
    only_on("sqlite", "postgresql")
    assert around(leave_a_plain_sql_transaction, Order.objects.count, OrderFactory)[1] == 0
    assert other_connections_see() == 1


def test_a_handler_that_raises_inside_its_block_leaves_a_usable_connection():
    def fail():
        with transaction.atomic():
            OrderFactory()
            raise RuntimeError("not today")

    here = Surroundings()
    with pytest.raises(RuntimeError, match="not today"):
        here.call(lambda job: fail(), None)
    here.call(lambda job: OrderFactory(), None)
    assert other_connections_see() == 1


@pytest.mark.parametrize("leave", [leave_a_block_broken, connection.set_rollback], ids=str)
def test_the_transaction_around_a_call_stays_the_callers(leave):
    with transaction.atomic():
        OrderFactory()
        around(lambda: OrderFactory())
        assert connection.in_atomic_block
        assert Order.objects.count() == 2
        transaction.set_rollback(True)
    assert other_connections_see() == 0


def end_own_session():
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        else:
            cursor.execute("KILL CONNECTION_ID()")


def test_a_session_that_ended_in_a_handler_is_replaced_for_the_next(only_on):
    only_on("postgresql", "mysql")

    def lose_it():
        with pytest.raises(DatabaseError):
            end_own_session()

    assert around(lose_it, Order.objects.count)[1] == 0


def test_a_session_that_ended_between_jobs_is_replaced_before_the_next(only_on, monkeypatch):
    only_on("postgresql", "mysql")
    monkeypatch.setattr(surroundings, "STALE_SECONDS", 0)
    here = Surroundings()
    here.call(lambda job: connection.ensure_connection(), None)
    driver = connection.connection
    try:
        with driver.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pg_backend_pid())"
                if connection.vendor == "postgresql"
                else f"KILL {driver.thread_id()}"
            )
    except connection.Database.Error:
        pass
    here.call(lambda job: OrderFactory(), None)
    assert Order.objects.count() == 1


@pytest.fixture
def autocommit_off_in_settings(monkeypatch):
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    yield
    monkeypatch.undo()
    connection.close()


def test_the_owned_connection_commits_each_statement_where_settings_turn_that_off(
    autocommit_off_in_settings,
):
    around(OrderFactory, connection.close, OrderFactory, owned="default")
    assert other_connections_see() == 2


def test_what_a_handler_did_not_commit_where_settings_leave_that_to_it_is_rolled_back(
    autocommit_off_in_settings,
):
    def create_and_commit():
        OrderFactory()
        transaction.commit()

    around(OrderFactory, create_and_commit, OrderFactory)
    assert other_connections_see() == 1


# -- the query log --------------------------------------------------------------------------------


def test_the_query_log_is_empty_for_every_job_in_every_thread(settings):
    settings.DEBUG = True
    connection.queries_log.clear()

    def look():
        found = len(connection.queries)
        OrderFactory()
        assert len(connection.queries) > found
        return found

    assert in_threads(*[lambda: around(look, look, look)] * 3) == [[0, 0, 0]] * 3


def test_a_query_log_that_a_test_reads_is_left_alone(settings):
    settings.DEBUG = True
    with CaptureQueriesContext(connection) as captured:
        around(OrderFactory, OrderFactory)
    assert len(captured) >= 2


def test_dropping_connections_closes_those_of_this_thread_alone():
    connection.ensure_connection()

    def drop():
        connection.ensure_connection()
        transaction.atomic().__enter__()
        surroundings.drop_connections()
        return connection.connection, threading.current_thread() is threading.main_thread()

    assert in_threads(drop) == [(None, False)]
    assert connection.connection is not None
