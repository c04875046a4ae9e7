"""What an elimination would cost, counted in cells before anything is computed, and the cheapest order."""

from __future__ import annotations

import numpy as np

from syncline.planning.folding import number_equal
from syncline.planning.instance import Instance
from syncline.planning.layouts import Floats
from syncline.planning.ordering import RULES, Ordering, greedy

CHEAP_CELLS = 1_000_000
"""What can be computed in the time that looking for a way to avoid it would take."""


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
        """As if all steps that eliminate equal nodes in tables of the same size were one."""
        numbers = np.array(number_equal(self._instance.costs))
        return float(np.unique(np.stack([numbers[self._rows[:, 0]], self._cells()]), axis=1)[1].sum())

    def is_cheap(self) -> bool:
        """Whether it is not worth while to look for less."""
        return is_cheap(self.plain())

    def _cells(self) -> Floats:
        sizes = np.array([*map(len, self._instance.costs), 1], dtype=np.float64)
        return sizes[self._rows].prod(axis=1)


def cheapest_ordering(instance: Instance, first: Ordering | None = None) -> Ordering:
    """The order with the fewest cells, folded, of those that the greedy rules find.

    Args:
        instance: what to eliminate.
        first: the order of the first rule, if it is known.
    """
    neighbours = instance.neighbours()
    best = Effort(instance, first or greedy(neighbours, instance.sizes(), RULES[0]))
    if best.is_cheap():
        return best.ordering
    others = [Effort(instance, greedy(neighbours, instance.sizes(), rule)) for rule in RULES[1:]]
    return min([best, *others], key=Effort.folded).ordering
