"""How a loop is asked to stop: a token it waits on, and the signals that cancel it.

``StopToken`` may be cancelled from a signal handler, also while the main thread is inside
``wait``. A ``threading.Event`` serves the loops as well, but must not be set from a signal
handler of the thread that waits on it: its lock is not reentrant.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Stoppable(Protocol):
    """What a loop needs of its stop: ``StopToken`` and ``threading.Event`` have both."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class StopToken:
    """A one-way switch: once cancelled it stays so."""

    def __init__(self) -> None:
        self._cancelled = False
        # SimpleQueue.put is documented as reentrant, which Event.set and Condition are not.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def cancel(self) -> None:
        """Ask the loop to stop. Safe in a signal handler, and any number of times."""
        self._cancelled = True
        self._wake.put(None)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def is_set(self) -> bool:
        """The name that ``threading.Event`` has for ``is_cancelled``."""
        return self._cancelled

    def wait(self, seconds: float) -> bool:
        """Sleep for ``seconds`` of the monotonic clock, or until cancelled; True if cancelled."""
        if not self._cancelled and seconds > 0:
            try:
                self._wake.get(timeout=min(seconds, threading.TIMEOUT_MAX))
            except queue.Empty:
                pass
            else:
                self._wake.put(None)  # the next waiter's
        return self._cancelled


@contextmanager
def stop_on_signals(stop: StopToken) -> Iterator[None]:
    """Let SIGTERM and SIGINT cancel ``stop`` inside the block; once it is cancelled, the next one
    ends the process now.

    Off the main thread, where Python sets no handlers, the block runs without them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(signum: int, frame: object) -> None:
        if stop.is_cancelled:
            os._exit(128 + signum)
        stop.cancel()

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            if handler is not None:  # None: set by C code, and not for Python to set again
                signal.signal(signum, handler)
