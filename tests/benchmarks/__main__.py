"""``python -m tests.benchmarks [--quick]``: our figures beside the bare driver's.

The database is the one of the tests (``ALKSTORE_DATABASE_URL``); both sides run on it in turn, and
the ratio is what to compare between machines. ``--quick`` is for function, not for figures.
"""

import argparse
import logging
import os
from dataclasses import dataclass

import django


@dataclass(frozen=True)
class Size:
    singles: int
    many: int
    drain: int
    samples: int
    backlogs: tuple
    delayed: int
    finished: int
    idle: float


FULL = Size(2_000, 20_000, 20_000, 100, (1_000, 100_000, 1_000_000), 200_000, 1_000_000, 20)
QUICK = Size(200, 2_000, 2_000, 10, (1_000, 10_000), 2_000, 10_000, 2)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--quick", action="store_true", help="small sizes: for function")
    parser.add_argument("--only", help="the measures whose name contains this")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable(logging.WARNING)
    from django.db import connection

    from .measures import MEASURES

    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        print(f"{connection.display_name}: ours, the bare driver's, and the ratio", flush=True)
        for measure in MEASURES:
            if options.only and options.only not in measure.__name__:
                continue
            for figure in measure(QUICK if options.quick else FULL):
                print(line(figure), flush=True)
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)


def line(figure):
    bare = "" if figure.bare is None else f"{figure.bare:>12,.2f}"
    ratio = "" if figure.ratio is None else f"{figure.ratio:>8.2f}"
    return f"{figure.what:<58} {figure.ours:>12,.2f} {bare:>12} {figure.unit:<6}{ratio}"


if __name__ == "__main__":
    main()
