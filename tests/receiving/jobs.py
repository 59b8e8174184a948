"""Deliveries for process tests: each writes to the journal that it was entered, then misbehaves if
its payload asks for it.

The journal is the file that ``RECEIVING_JOURNAL`` names; a line is written in one append.
"""

import json
import os
import signal
import time
from pathlib import Path

from django_alkstore import delivery


def journal():
    return Path(os.environ["RECEIVING_JOURNAL"])


def die(job):
    os._exit(137)


def be_killed_once(job):
    if job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_leave(job):
    while not journal().with_suffix(".leave").exists():
        time.sleep(0.02)


def fail_once(job):
    if job.attempts == 1:
        raise RuntimeError("not today")


MISBEHAVIOURS = {f.__name__: f for f in (die, be_killed_once, wait_for_leave, fail_once)}


@delivery("letters")
def receive(job):
    entered = {"key": job.idempotency_key, "attempt": job.attempts, "payload": job.payload}
    with journal().open("a") as file:
        file.write(json.dumps(entered) + "\n")
    if job.payload in MISBEHAVIOURS:
        MISBEHAVIOURS[job.payload](job)
