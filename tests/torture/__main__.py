"""``python -m tests.torture [--seconds 60] [--seed N]``: do the promises hold under torture?

The database is the one of the tests (``ALKSTORE_DATABASE_URL``). Exit code 1: a rule was broken,
and the story of one job that shows it was printed. ``--mutants`` lists the faults that can be
planted on purpose, each with the rule that it breaks, and ``--mutant NAME`` plants one.
"""

import argparse
import os
import random
import signal
import sys
import tempfile

import django


def main():
    arguments = parser()
    options = arguments.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.torture.settings")
    django.setup()
    from django.db import connection

    from .mutants import MUTANTS, listed
    from .restarting import CannotRestart, restart_command

    if options.mutants:
        print("\n".join(listed()))
        return 0
    if options.mutant and options.mutant not in MUTANTS:
        arguments.error(f"expected --mutant to be one of --mutants, got {options.mutant!r}")
    restart = None
    if options.restart_server is not None:
        try:
            restart = restart_command(connection, options.restart_server)
        except CannotRestart as exc:
            arguments.error(str(exc))
    return run(connection, options, restart)


def run(connection, options, restart):
    from .run import run

    # Whoever ends this with SIGTERM does not want to leave its processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    created = connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        directory = tempfile.mkdtemp(prefix="torture-")  # kept: it has the processes' log
        verdict = run(options.seed, options.seconds, directory, options.mutant, restart)
        print(*verdict.lines(), f"journal and log: {directory}", sep="\n")
    finally:
        connection.creation.destroy_test_db(created, verbosity=0)
    return 0 if verdict.holds else 1


def parser():
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    add = parser.add_argument
    add("--seconds", type=float, default=60.0)
    add("--seed", type=int, default=random.randrange(10**6))
    add("--mutants", action="store_true", help="list the faults that can be planted, and end")
    add("--mutant", metavar="NAME", help="plant this fault")
    add("--restart-server", nargs="?", const="", metavar="COMMAND",
        help="restart PostgreSQL now and then, with this command (default: the Debian cluster at"
        " the database's port): only where nobody else uses the server")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
