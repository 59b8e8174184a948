"""A worker process for the benchmarks: ``python -m tests.benchmarks.child KIND``.

It says ``ready`` when it could begin, waits for a line on its standard input, works, and prints
what it saw. The worker is the package's own; the handler does nothing, or notes the time.
"""

import io
import json
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import django

RATE = 300  # jobs a second that ``enqueue`` adds


def drain():
    """Work until nothing is ready: the instants of begin and end, and how many jobs."""
    count = 0

    def call(job):
        nonlocal count
        count += 1

    begun = time.time()
    worker(call).burst()
    return {"begun": begun, "ended": time.time(), "count": count}


def note_starts():
    """Work until told to stop: when each job's handler started, by its payload."""
    starts = {}

    def call(job):
        starts[job.payload] = time.time()

    until_told(call)
    return {"starts": starts}


def idle():
    """Work until told to stop: how many statements were sent, and how much CPU was used."""
    begun, before = time.monotonic(), time.process_time()
    with timed_statements() as taken:
        until_told(lambda job: None)
    return {
        "seconds": time.monotonic() - begun,
        "statements": len(taken),
        "cpu": time.process_time() - before,
    }


@contextmanager
def timed_statements():
    """The seconds of each statement of this thread."""
    from django.db import connection

    taken = []

    def timing(execute, sql, params, many, context):
        begun = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            taken.append(time.perf_counter() - begun)

    with connection.execute_wrapper(timing):
        yield taken


def prune():
    """Run alkstore_prune: seconds, the slowest statement's, and the most memory in MB."""
    from django.core.management import call_command

    begun = time.monotonic()
    with timed_statements() as taken:
        call_command("alkstore_prune", stdout=io.StringIO())
    return {"seconds": time.monotonic() - begun, **worst(taken)}


def lead():
    """Run the scheduler until told to stop: the slowest statement's seconds, and memory in MB."""
    from django_alkstore import StopToken, run_schedules

    stop = StopToken()
    cancel_when_told(stop)
    with timed_statements() as taken:
        run_schedules(stop)
    return worst(taken)


def worst(taken):
    # As Linux has it: what getrusage says begins with the memory of the parent.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {"slowest": max(taken), "memory": int(peak[1]) / 1024}


def note_claims():
    """Work until told to stop: at each line before, the milliseconds of the claims since the last."""
    from django_alkstore import StopToken, outbox
    from django_alkstore.queues import Queue

    taken, stop = [], StopToken()

    class Timed(Queue):
        def claim_batch(self, worker_id, n):
            begun = time.perf_counter()
            jobs = super().claim_batch(worker_id, n)
            taken.append(1000 * (time.perf_counter() - begun))
            return jobs

    def tell():
        while sys.stdin.readline().strip():
            print(json.dumps([taken.pop() for _ in range(len(taken))]), flush=True)
        stop.cancel()

    threading.Thread(target=tell, daemon=True).start()
    worker(lambda job: None, stop, Timed(outbox("bench").queue.name)).run()


def enqueue():
    """Enqueue 300 jobs a second, three in a transaction, until told to stop; how many."""
    from django.db import transaction

    from django_alkstore import StopToken, outbox

    box, stop, begun, count = outbox("bench"), StopToken(), time.monotonic(), 0
    cancel_when_told(stop)
    while not stop.is_cancelled:
        with transaction.atomic():
            for _ in range(3):
                box.enqueue_tx({"order": count})
                count += 1
        stop.wait(max(0.0, begun + count / RATE - time.monotonic()))
    return {"count": count}


def until_told(call):
    from django_alkstore import StopToken

    stop = StopToken()
    cancel_when_told(stop)
    worker(call, stop).run()


def cancel_when_told(stop):
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.cancel()), daemon=True).start()


def worker(call, stop=None, queue=None):
    from django_alkstore import StopToken, outbox
    from django_alkstore.holds import Source
    from django_alkstore.workers import Limits, Worker, default_worker_id

    source = Source(queue or outbox("bench").queue, call)
    return Worker([source], default_worker_id(), stop or StopToken(), Limits(poll_interval=1.0))


KINDS = {
    "drain": drain, "starts": note_starts, "idle": idle, "claims": note_claims, "enqueue": enqueue,
    "prune": prune, "lead": lead,
}  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    from django.db import connection

    connection.ensure_connection()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(KINDS[sys.argv[1]]()))
