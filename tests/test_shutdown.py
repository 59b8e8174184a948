import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from django_alkstore import InvalidOption, StopToken, run_schedules
from django_alkstore.models import Lock
from django_alkstore.shutdown import Stoppable, stop_on_signals

from .processes import PATIENCE, ROOT, in_threads, until

LONG = 2 * PATIENCE  # a waiter that nobody wakes still ends
SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def child():
    """Run a program that prints a line whenever it is somewhere."""
    children = []

    def run(program):
        head = """
            import os, signal, sys, threading
            from django_alkstore import StopToken
            from django_alkstore.shutdown import stop_on_signals
        """
        popen = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(head) + textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(popen)
        return popen

    yield run
    for popen in children:
        popen.kill()
        popen.communicate()


# -- the token ------------------------------------------------------------------------------------


def test_a_token_is_cancelled_once_and_for_all():
    stop = StopToken()
    assert (stop.is_cancelled, stop.is_set(), stop.wait(0)) == (False, False, False)
    stop.cancel()
    stop.cancel()
    assert (stop.is_cancelled, stop.is_set(), stop.wait(0)) == (True, True, True)


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), 0.001])
def test_waiting_on_a_token_that_nobody_cancels_ends_by_itself(seconds):
    assert StopToken().wait(seconds) is False


def test_waiting_on_a_cancelled_token_returns_at_once_and_every_time():
    stop = StopToken()
    stop.cancel()
    assert in_threads(*[lambda: [stop.wait(LONG) for _ in range(3)]] * 4) == [[True] * 3] * 4


def test_every_waiter_wakes():
    stop = StopToken()

    def waiters():
        return sum(f.f_code is StopToken.wait.__code__ for f in sys._current_frames().values())

    def cancel_once_they_all_wait():
        until(lambda: waiters() == 8)
        stop.cancel()

    waits = [lambda: stop.wait(LONG)] * 8
    assert in_threads(*waits, cancel_once_they_all_wait) == [True] * 8 + [None]


def test_a_token_and_an_event_are_both_stoppable():
    assert isinstance(StopToken(), Stoppable)
    assert isinstance(threading.Event(), Stoppable)
    assert not isinstance(threading.Lock(), Stoppable)


def test_a_signal_handler_wakes_the_main_thread_again_and_again(child):
    program = child("""
        for _ in range(200):
            stop = StopToken()
            signal.signal(signal.SIGALRM, lambda *args: stop.cancel())
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            stop.wait(float("inf"))
        print("woken")
    """)
    assert program.communicate(timeout=PATIENCE)[0] == "woken\n"


# -- signals --------------------------------------------------------------------------------------

TWICE = """
    stop = StopToken()
    with stop_on_signals(stop):
        print("waiting")
        stop.wait(float("inf"))
        print("cancelled")
        if sys.stdin.read():
            print("going on")
"""


@pytest.mark.parametrize("signum", SIGNALS)
def test_the_first_signal_cancels_and_the_program_ends_as_it_likes(child, signum):
    program = child(TWICE)
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(signum)
    assert program.stdout.readline() == "cancelled\n"
    assert program.communicate("go on", timeout=PATIENCE)[0] == "going on\n"
    assert program.returncode == 0


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_the_process_now(child, first, second):
    program = child(TWICE)
    assert program.stdout.readline() == "waiting\n"
    program.send_signal(first)
    assert program.stdout.readline() == "cancelled\n"
    program.send_signal(second)
    assert program.wait(PATIENCE) == 128 + second


def test_the_handlers_are_put_back_also_after_an_error():
    before = [signal.getsignal(signum) for signum in SIGNALS]
    with pytest.raises(ZeroDivisionError), stop_on_signals(StopToken()):
        assert [signal.getsignal(signum) for signum in SIGNALS] != before
        raise ZeroDivisionError
    assert [signal.getsignal(signum) for signum in SIGNALS] == before


def test_a_signal_to_this_process_cancels_the_token_of_the_block():
    stop = StopToken()
    with stop_on_signals(stop):
        signal.raise_signal(signal.SIGTERM)
    assert stop.is_cancelled


def test_off_the_main_thread_no_handler_is_set():
    before = [signal.getsignal(signum) for signum in SIGNALS]

    def inside():
        with stop_on_signals(StopToken()):
            return [signal.getsignal(signum) for signum in SIGNALS]

    assert in_threads(inside) == [before]


# -- what the loops take --------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("stop", "cancel"),
    [(StopToken, StopToken.cancel), (threading.Event, threading.Event.set)],
    ids=["StopToken", "Event"],
)
def test_the_scheduler_stops_on_a_token_and_on_an_event(stop, cancel):
    stop = stop()

    def stop_it_once_it_leads():
        until(Lock.objects.exclude(owner="").exists)
        cancel(stop)

    assert in_threads(lambda: run_schedules(stop), stop_it_once_it_leads) == [None, None]
    assert not Lock.objects.exclude(owner="").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("stop", [0, False, "stop", threading.Lock(), 5.0], ids=repr)
def test_what_cannot_be_waited_on_is_refused_before_the_lease_is_asked_for(stop, statements):
    with pytest.raises(InvalidOption, match="^expected stop to be .*, got "):
        run_schedules(stop)
    assert len(statements) == 0
