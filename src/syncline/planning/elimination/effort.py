"""What an elimination would cost, counted in cells before anything is computed, and the cheapest order."""

from __future__ import annotations

import numpy as np

from syncline.planning.elimination.folding import number_equal
from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.layouts import Floats
from syncline.planning.elimination.ordering import RULES, Ordering, greedy
from syncline.planning.elimination.repetition import blockwise

CHEAP_CELLS = 1_000_000
"""What can be computed in the time that looking for a way to avoid it would take."""
SEARCH_CELLS = 20_000
"""What can be computed in the time that the other greedy rules take for one node."""


def is_cheap(cells: float) -> bool:
    """Whether so few cells are better computed than avoided."""
    return cells <= CHEAP_CELLS


class Effort:
    """The cells that an elimination in this order visits, as the instance's configurations dwindle."""

    def __init__(self, instance: Instance, ordering: Ordering) -> None:
        self.ordering = ordering
        self._instance = instance
        self._rows = ordering.padded()

    def plain(self) -> float:
        """Without folding: the sum over all steps of the product of the sizes."""
        return float(self._cells().sum())

    def folded(self) -> float:
        """At the very least: as if steps that eliminate equal nodes in tables of equal size were one."""
        numbers = np.array(number_equal(self._instance.costs))
        return float(np.unique(np.stack([numbers[self._rows[:, 0]], self._cells()]), axis=1)[1].sum())

    def is_cheap(self) -> bool:
        """Whether it is not worth while to look for less."""
        return is_cheap(self.plain())

    def _cells(self) -> Floats:
        sizes = np.array([*map(len, self._instance.costs), 1], dtype=np.float64)
        with np.errstate(over="ignore"):  # a table too large to count is simply infinite
            return sizes[self._rows].prod(axis=1)


def cheapest_ordering(
    instance: Instance, *, fold: bool, first: Ordering | None = None
) -> tuple[Ordering, float]:
    """The order that visits the fewest cells of those that the greedy rules find.

    Args:
        instance: what to eliminate.
        fold: whether equal tables will be computed once.
        first: the order of the first rule, if it is known.

    Returns:
        The order, and its cells.
    """
    neighbours, sizes = instance.neighbours(), instance.sizes()
    first = first or greedy(neighbours, sizes, RULES[0])
    best: tuple[Ordering, float] = first, sum(first.cells(sizes))
    if is_cheap(best[1]):
        return best
    if fold:
        best = min(best, blockwise(instance), key=_cells)
    for rule in RULES[1:]:
        if best[1] > SEARCH_CELLS * len(sizes):
            other = greedy(neighbours, sizes, rule)
            best = min(best, (other, sum(other.cells(sizes))), key=_cells)
    return best


def _cells(found: tuple[Ordering, float]) -> float:
    return found[1]
