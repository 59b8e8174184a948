"""``python -m tests.matrix [CELL ...]``: the tests that fit, once in each cell of settings.

The database is the one of the tests (``ALKSTORE_DATABASE_URL``), and cells of other databases are
left out. A CELL may be the beginning of a name. Exit code 1: a test failed, and what pytest said
was printed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from ..processes import ROOT, URL
from .cells import CELLS, environment

OPTIONS = ("-q", "-p", "no:cacheprovider")
IN_FORCE = "tests/matrix/in_force.py"


def main():
    options = parser().parse_args()
    url = (os.environ.get(URL) or "sqlite:///db.sqlite3").partition("?")[0]
    vendor = urlsplit(url).scheme.replace("mariadb", "mysql")
    fitting = {name: cell for name, cell in CELLS.items() if vendor in cell.on}
    if options.list:
        print("\n".join(fitting))
        return 0
    chosen = [name for name in fitting if name.startswith(tuple(options.cells or [""]))]
    if unknown := [n for n in options.cells if not any(name.startswith(n) for name in CELLS)]:
        sys.exit(f"no such cell: {', '.join(unknown)}")
    failed = [name for name in chosen if not passes(name, url, options.files)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} cells passed", *failed, sep="\n  failed: ")
    return 1 if failed else 0


def parser():
    parser = argparse.ArgumentParser(prog="python -m tests.matrix")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="default: all that there are")
    parser.add_argument("--files", nargs="+", help="as pytest takes them; default: what fits")
    parser.add_argument("--list", action="store_true", help="the cells of this database")
    return parser


def passes(name, url, files):
    """Run a cell; whether all is well."""
    files = files or [f"tests/test_{file}.py" for file in CELLS[name].files]
    with (
        tempfile.TemporaryDirectory(prefix="matrix-") as directory,
        environment(name, url, Path(directory)) as env,
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *OPTIONS, IN_FORCE, *files],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        print(done.stdout + done.stderr)
    print(f"{name}: {(done.stdout.strip() or 'nothing').splitlines()[-1]}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
