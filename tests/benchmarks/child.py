"""A worker process for the benchmarks: ``python -m tests.benchmarks.child KIND``.

It says ``ready`` when it could begin, waits for a line on its standard input, works, and prints
what it saw. The worker is the package's own; the handler does nothing, or notes the time.
"""

import json
import os
import sys
import threading
import time

import django


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
    from django.db import connection

    count, before = 0, time.process_time()

    def counting(execute, sql, params, many, context):
        nonlocal count
        count += 1
        return execute(sql, params, many, context)

    begun = time.monotonic()
    with connection.execute_wrapper(counting):
        until_told(lambda job: None)
    return {
        "seconds": time.monotonic() - begun,
        "statements": count,
        "cpu": time.process_time() - before,
    }


def until_told(call):
    from django_alkstore import StopToken

    stop = StopToken()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.cancel()), daemon=True).start()
    worker(call, stop).run()


def worker(call, stop=None):
    from django_alkstore import StopToken, outbox
    from django_alkstore.workers import Limits, Source, Worker, default_worker_id

    source = Source(outbox("bench").queue, call)
    return Worker([source], default_worker_id(), stop or StopToken(), Limits(poll_interval=1.0))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    from django.db import connection

    connection.ensure_connection()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"drain": drain, "starts": note_starts, "idle": idle}[sys.argv[1]]()))
