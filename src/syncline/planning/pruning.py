"""Decides whether bounding a problem pays, and for how long.

A pass of bounds visits each edge matrix once; a table of the elimination has a cell for each combination
of a node and its scope. Where tables are wide, a few passes leave so few configurations that the tables
vanish; where the graph is a chain, the elimination is as cheap as a single pass. Both are counted in
cells before anything is computed.
"""

from __future__ import annotations

import numpy as np

from syncline.planning.bounds import Ascent
from syncline.planning.folding import number_equal
from syncline.planning.instance import Instance
from syncline.planning.layouts import Floats
from syncline.planning.ordering import Ordering

EDGE_CELLS = 15_000
"""How many cells could be visited in the time that handling one edge takes anyway."""
PAYS_FROM = 3
"""Bounding starts when the elimination would take at least as long as this many passes."""
MAX_PASSES = 40


class Effort:
    """The cells that an elimination would visit, for any number of remaining configurations."""

    def __init__(self, instance: Instance, ordering: Ordering) -> None:
        self._instance = instance
        self._rows = ordering.padded()
        self._order = np.array(ordering.order, dtype=np.intp)

    def plain(self) -> float:
        """Without folding: the sum over all steps of the product of the sizes."""
        return float(self._cells().sum())

    def folded(self) -> float:
        """As if steps that eliminate equal nodes in tables of the same size were equal."""
        numbers = np.array(number_equal(self._instance.costs), dtype=np.intp)[self._order]
        return float(np.unique(np.stack([numbers, self._cells()]), axis=1)[1].sum())

    def _cells(self) -> Floats:
        sizes = np.array([*self._instance.sizes(), 1], dtype=np.float64)
        return sizes[self._rows].prod(axis=1)


def pass_cells(instance: Instance) -> int:
    """What one pass of bounds costs, in cells of an elimination."""
    return sum(table.matrix.size + EDGE_CELLS for table in instance.tables)


def pays(instance: Instance, effort: Effort) -> bool:
    """Whether bounding the instance is likely to be quicker than eliminating it as it is."""
    least = PAYS_FROM * pass_cells(instance)
    return effort.plain() > least and effort.folded() > least


def bound(ascent: Ascent, effort: Effort, *, least: int = 0) -> None:
    """Crosses out configurations by bounds until an elimination is cheaper than another pass.

    The time spent is never more than the elimination would have taken without it.

    Args:
        ascent: the bounds, on the instance whose effort is measured.
        effort: tells what is left for the elimination.
        least: the number of passes to run in any case.
    """
    budget = effort.plain()
    for number in range(MAX_PASSES):
        cells = pass_cells(ascent.instance)
        budget -= cells
        if number >= least and (budget < 0 or effort.plain() < cells):
            return
        ascent.run_pass()
