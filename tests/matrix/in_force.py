"""Runs first in each cell: the cell is what it says it is, here and in the processes of the tests."""

import os
import sys

from ..processes import CHILDREN_QUERY, across_connections
from .cells import CELL, CELLS

pytestmark = across_connections

LOOK = """
import django; django.setup()
from tests.matrix import looks
print(looks.{look}())
"""


def test_the_cell_is_in_force_in_the_processes_of_its_tests(start):
    cell = CELLS[os.environ[CELL]]
    child = start(argv=[sys.executable, "-c", LOOK.format(look=cell.look)])
    assert (child.wait(), child.text.strip()) == (0, str(cell.seen)), child.text


def test_the_cell_is_in_force_here():
    from . import looks

    cell = CELLS[os.environ[CELL]]
    is_for_children = CHILDREN_QUERY in os.environ
    assert (getattr(looks, cell.look)() == cell.seen) is not is_for_children
