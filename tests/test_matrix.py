"""The matrix of settings (``python -m tests.matrix``) runs what there is to run."""

import subprocess
import sys

import pytest

from .matrix.cells import CELLS
from .processes import PATIENCE, ROOT


@pytest.mark.parametrize("name", CELLS)
def test_the_files_that_a_cell_names_exist(name):
    assert not [f for f in CELLS[name].files if not (ROOT / f"tests/test_{f}.py").exists()]


def test_a_cell_that_does_not_exist_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "tests.matrix", "zone", "zonex"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "no such cell: zonex\n")
