"""Writes every claim, write-back and lock call of a process into the journal, with what came of it.

It stands around the verbs of ``sql.Engine``, below the handles, so it sees those of the worker and
of the scheduler as well as those of handlers. It changes nothing.
"""

from contextlib import ExitStack, contextmanager

from django_alkstore.sql import Engine


@contextmanager
def recorded(journal):
    """Record the calls of this process inside the block."""
    with ExitStack() as stack:
        for name, recorder in _RECORDERS.items():
            stack.enter_context(swapped(Engine, name, recorder(journal, name)))
        yield


@contextmanager
def swapped(owner, name, value):
    """``owner.name`` is ``value`` inside the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _claims(journal, name):
    plain = getattr(Engine, name)

    def claim(engine, queue, worker_id, token, limit, lately=None):
        call = _ask(journal, engine, "claim", queue=queue, token=token)
        rows = plain(engine, queue, worker_id, token, limit, lately)
        jobs = [
            {"id": row[0], "attempt": row[2], "max_attempts": row[3], "visibility_timeout": row[4]}
            for row in rows
        ]
        if jobs:
            journal.write("answered", call=call, verb="claim", token=token, jobs=jobs)
        return rows

    return claim


def _of_many(journal, name):
    plain = getattr(Engine, name)

    def verb(engine, token, ids):
        call = _ask(journal, engine, name, token=token, ids=list(ids), seconds=None)
        matched = plain(engine, token, ids)
        _answer(journal, call, name, matched, ids=list(ids))
        return matched

    return verb


def _of_one(journal, name):
    plain = getattr(Engine, name)

    def verb(engine, id, token, *args):
        seconds = args[0] if name in ("heartbeat", "retry") else None
        call = _ask(journal, engine, name, token=token, ids=[id], seconds=seconds)
        result = plain(engine, id, token, *args)
        _answer(journal, call, name, 1 if result else 0, ids=[id])
        return result

    return verb


def _takes(journal, name):
    plain = getattr(Engine, name)

    def take_lock(engine, lock, owner, ttl):
        call = _ask(journal, engine, name, name=lock, owner=owner, seconds=ttl)
        token = plain(engine, lock, owner, ttl)
        if token is not None:
            journal.write("answered", call=call, verb=name, name=lock, token=token)
        return token

    return take_lock


def _of_lock(journal, name):
    plain = getattr(Engine, name)

    def verb(engine, lock, owner, token, *ttl):
        seconds = ttl[0] if ttl else None
        call = _ask(journal, engine, name, name=lock, token=token, seconds=seconds)
        matched = plain(engine, lock, owner, token, *ttl)
        _answer(journal, call, name, matched, name=lock)
        return matched

    return verb


def _ask(journal, engine, verb, /, **fields):
    call = journal.new_call()
    inside = engine.in_callers_transaction()
    journal.write("asked", call=call, verb=verb, inside=inside, **fields)
    return call


def _answer(journal, call, verb, matched, **fields):
    journal.write("answered", call=call, verb=verb, matched=matched, **fields)


_RECORDERS = {
    "claim": _claims,
    "ack": _of_many,
    "keep": _of_many,
    "release": _of_many,
    "fail": _of_one,
    "retry": _of_one,
    "heartbeat": _of_one,
    "take_lock": _takes,
    "renew_lock": _of_lock,
    "release_lock": _of_lock,
}
