"""Decides whether crossing out configurations pays, and for how long.

A pass of bounds visits each edge matrix once; a table of the elimination has a cell for each combination
of a node and its scope. Where tables are wide, a few passes leave so few configurations that the tables
vanish; where the graph is a chain, the elimination is as cheap as a single pass.
"""

from __future__ import annotations

from syncline.planning.elimination import dominance
from syncline.planning.elimination.bounds import Ascent
from syncline.planning.elimination.effort import Effort
from syncline.planning.elimination.instance import Instance

EDGE_CELLS = 15_000
"""How many cells could be visited in the time that handling one edge takes anyway."""
TABLE_FACTOR = 4
"""How much longer a cell of a small table takes than one of a pass."""
PAYS_FROM = 3
"""Bounding starts when the elimination would take at least as long as this many passes."""
MAX_PASSES = 40


def pass_cells(instance: Instance) -> int:
    """What one pass of bounds costs, in cells of an elimination."""
    return sum(table.matrix.size + EDGE_CELLS for table in instance.tables)


def bounding_pays(instance: Instance, cells: float) -> bool:
    """Whether bounding the instance is likely to be quicker than an elimination of so many cells."""
    return cells > PAYS_FROM * pass_cells(instance)


def dominance_pays(instance: Instance, effort: Effort) -> bool:
    """Whether comparing configurations is quicker than eliminating them all."""
    return not effort.is_cheap() and effort.folded() > 2 * dominance.effort(instance)


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
        if number >= least and (budget < 0 or TABLE_FACTOR * effort.plain() < cells):
            return
        ascent.run_pass()
