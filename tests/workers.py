"""Workers for tests: run in this thread, or in one of their own until a block ends."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from django.db import connections

from django_alkstore import StopToken, queue
from django_alkstore.holds import Source
from django_alkstore.workers import Limits, Worker

from .processes import PATIENCE


def made(call, names=("reports",), *, stop=None, heartbeat=False, **limits):
    """A worker that hands the jobs of each queue to ``call``."""
    sources = [Source(queue(name), call, heartbeat) for name in names]
    limits = Limits(**{"poll_interval": 0.05, "grace": 1_000, **limits})
    return Worker(sources, "w", stop or StopToken(), limits)


@contextmanager
def working(call, names=("reports",), **given):
    """A worker in a thread of its own until the block ends; its stop."""
    stop = StopToken()

    def run():
        try:
            made(call, names, stop=stop, **given).run()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        try:
            yield stop
        finally:
            stop.cancel()
            future.result(PATIENCE)


def drain(call, names=("reports",), **given):
    """Run a worker in this thread until no job is ready."""
    made(call, names, **given).burst()
