"""``python -m tests.torture [--seconds 60] [--seed N]``: do the promises hold under torture?

The database is the one of the tests (``ALKSTORE_DATABASE_URL``). Exit code 1: a rule was broken,
and the story of one job that shows it was printed. ``--mutant NAME`` plants a fault on purpose.
"""

import argparse
import os
import random
import sys
import tempfile

import django


def main():
    options = parser().parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.torture.settings")
    django.setup()
    from django.db import connection

    from .run import run

    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        directory = tempfile.mkdtemp(prefix="torture-")  # kept: it has the processes' log
        restarts = [options.seconds / 2] if options.restart_server else []
        verdict = run(options.seed, options.seconds, directory, options.mutant, restarts)
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)
    print("\n".join(verdict.lines()), f"journal and log: {directory}", sep="\n")
    return 0 if verdict.holds else 1


def parser():
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--mutant", help="plant this fault")
    parser.add_argument(
        "--restart-server", action="store_true", help="PostgreSQL, once: if nobody else uses it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
