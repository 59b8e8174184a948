"""Locks beyond the contract: transactions, the context manager, holders that die."""

import sys
from contextlib import contextmanager, suppress

import pytest
from django.db import Error, connection, transaction

from django_alkstore import InvalidName, InvalidOption, LockHeld, ReservedName, lock
from django_alkstore.models import Lock
from testproject.shop.models import Order

from .factories import LockFactory, OrderFactory, ago
from .processes import across_connections, held, in_threads

pytestmark = pytest.mark.django_db


def lapse():
    Lock.objects.update(expires_at=ago(1))


def seconds_left():
    return (Lock.objects.get().expires_at - ago()).total_seconds()


# -- wrong values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0, -1, 10**12, float("nan"), float("inf"), True, "60", None])
def test_a_wrong_ttl_is_refused_before_any_statement(ttl, statements):
    with pytest.raises(InvalidOption, match="expected ttl"):
        lock("import", ttl=ttl)
    assert len(statements) == 0


@pytest.mark.parametrize("ttl", [0, -1, 10**12, float("nan"), True, "60"])
def test_a_wrong_ttl_of_a_renewal_is_refused_and_the_lock_kept(ttl):
    mine = lock("import", ttl=60)
    mine.acquire()
    with pytest.raises(InvalidOption, match="expected ttl"):
        mine.renew(ttl)
    assert seconds_left() == pytest.approx(60, abs=10)


@pytest.mark.parametrize(
    ("name", "error"), [("", InvalidName), (None, InvalidName), ("__alkstore_scheduler", ReservedName)]
)  # fmt: skip
def test_a_wrong_name_is_refused_before_any_statement(name, error, statements):
    with pytest.raises(error):
        lock(name)
    assert len(statements) == 0


def test_an_unknown_database_is_refused():
    with pytest.raises(InvalidOption, match="expected using"):
        lock("import", using="elsewhere").acquire()


# -- holding --------------------------------------------------------------------------------------


def test_a_fraction_of_a_second_is_kept():
    mine = lock("import", ttl=0.5)
    assert mine.acquire() is True
    row = Lock.objects.get()
    assert (row.expires_at - row.acquired_at).total_seconds() == pytest.approx(0.5, abs=0.002)


def test_a_renewal_counts_from_now_and_may_be_shorter():
    mine = lock("import", ttl=1000)
    mine.acquire()
    assert mine.renew() is True
    assert seconds_left() == pytest.approx(1000, abs=10)
    assert mine.renew(ttl=60) is True
    assert seconds_left() == pytest.approx(60, abs=10)


def test_a_handle_that_never_held_the_lock_cannot_renew_or_release_it():
    lock("import").acquire()
    stranger = lock("import")
    assert stranger.renew() is False
    assert stranger.release() is False
    assert stranger.acquire() is False
    assert stranger.release() is False
    assert lock("import").acquire() is False


def test_a_released_lock_is_not_renewed_or_released_again():
    mine = lock("import")
    mine.acquire()
    assert mine.release() is True
    assert mine.renew() is False
    assert mine.release() is False
    assert (mine.owner, mine.token) == (None, None)
    assert Lock.objects.get().owner == ""


def test_to_acquire_again_is_a_new_acquisition_not_a_renewal():
    mine = lock("import")
    mine.acquire()
    first = mine.owner, mine.token
    assert mine.acquire() is False
    assert (mine.owner, mine.token) == first
    lapse()
    assert mine.acquire() is True
    assert mine.owner != first[0]
    assert mine.token > first[1]


def test_a_handle_that_was_overtaken_in_its_own_thread_frees_nobody_elses_lock():
    first, second, third = lock("import", ttl=1), lock("import"), lock("import")
    first.acquire()
    lapse()
    assert second.acquire() is True
    assert first.release() is False
    assert third.acquire() is False


def test_a_row_whose_owner_was_replaced_is_lost_to_the_one_who_held_it():
    mine = lock("import")
    mine.acquire()
    Lock.objects.update(owner="another")
    before = Lock.objects.values().get()
    assert mine.renew() is False
    assert mine.release() is False
    assert Lock.objects.values().get() == before


def test_names_differ_by_case():
    assert lock("import").acquire() is True
    assert lock("Import").acquire() is True


HOLDER = """
import time
import django; django.setup()
from django_alkstore import lock
assert lock("import", ttl=600).acquire()
print("holding", flush=True)
time.sleep(60)
"""


@across_connections
def test_the_lock_of_a_killed_holder_is_free_once_it_lapses(start):
    holder = start(argv=[sys.executable, "-c", HOLDER])
    holder.until_says("holding")
    holder.kill()
    assert lock("import").acquire() is False
    lapse()
    mine = lock("import")
    assert mine.acquire() is True
    assert mine.token == 2


# -- in transactions ------------------------------------------------------------------------------


@across_connections
@pytest.mark.parametrize("stale", [True, False])
def test_a_lock_taken_in_a_block_that_rolls_back_is_not_held(stale):
    if stale:
        LockFactory(name="import", expires_at=ago(1))
    mine = lock("import")
    with transaction.atomic():
        assert mine.acquire() is True
        transaction.set_rollback(True)
    assert mine.renew() is False
    assert lock("import").acquire() is True


@across_connections
def test_the_losers_open_transaction_still_works():
    LockFactory(name="import")
    with transaction.atomic():
        OrderFactory()
        assert lock("import").acquire() is False
        OrderFactory()
    assert in_threads(Order.objects.count) == [2]


@across_connections
def test_whoever_loses_the_race_for_a_new_name_can_go_on_with_their_transaction(own_transactions):
    def try_it():
        with transaction.atomic():
            won = lock("import").acquire()
            OrderFactory()
        return won

    assert sorted(in_threads(*[try_it] * 4)) == [False] * 3 + [True]
    assert Order.objects.count() == 4


@across_connections
def test_a_lapsed_lock_that_somebody_is_just_taking_is_not_waited_for(only_on):
    only_on("postgresql", "mysql")  # SQLite has one writer at a time
    LockFactory(name="import", expires_at=ago(1))

    @contextmanager
    def taken_but_not_committed():
        with transaction.atomic():
            assert lock("import").acquire()
            yield

    with held(taken_but_not_committed):
        assert lock("import").acquire() is False
    assert lock("import").acquire() is False


# -- the context manager --------------------------------------------------------------------------


class BodyFailed(Exception):
    """What the body raises."""


def break_the_connection():
    """As a server does that goes away."""
    connection.connection.close()


def reconnect():
    with suppress(Error):  # MySQL's driver refuses to close twice
        connection.close()


def test_a_block_within_the_block_is_refused():
    mine = lock("import")
    with mine, pytest.raises(LockHeld), mine:
        pytest.fail("entered")
    assert lock("import").acquire() is True


def test_a_body_that_raises_frees_the_lock():
    with pytest.raises(BodyFailed), lock("import"):
        raise BodyFailed
    assert lock("import").acquire() is True


def test_a_lock_that_was_lost_meanwhile_is_reported_and_left_to_its_holder(caplog):
    with lock("import"):
        lapse()
        assert lock("import").acquire() is True
    assert "lock import had lapsed and was taken" in caplog.text
    assert lock("import").acquire() is False


def test_the_bodys_own_exception_is_seen_though_the_lock_was_lost():
    with pytest.raises(BodyFailed), lock("import"):
        lapse()
        lock("import").acquire()
        raise BodyFailed


@across_connections
def test_the_bodys_own_exception_is_seen_though_the_connection_is_broken(caplog):
    with pytest.raises(BodyFailed), lock("import"):
        break_the_connection()
        raise BodyFailed
    reconnect()
    assert "lock import could not be released and will lapse" in caplog.text
    assert lock("import").acquire() is False


@across_connections
def test_a_release_that_fails_is_not_hidden_when_the_body_succeeded():
    with pytest.raises(Error), lock("import"):
        break_the_connection()
    reconnect()
    assert lock("import").acquire() is False


@across_connections
def test_the_bodys_database_error_is_seen_though_it_broke_the_transaction():
    with pytest.raises(BodyFailed), transaction.atomic(), lock("import"):
        transaction.set_rollback(True)
        raise BodyFailed
    assert lock("import").acquire() is True
