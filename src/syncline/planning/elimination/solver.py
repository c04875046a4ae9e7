"""Solves one graph with any number of node costs: checks, prunes, orders, folds and tabulates."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from syncline.errors import PlanningError
from syncline.planning.elimination.bounds import Ascent, WarmStart
from syncline.planning.elimination.dominance import drop_dominated
from syncline.planning.elimination.effort import Effort, cheapest_ordering, is_cheap
from syncline.planning.elimination.folding import Schedule, schedule
from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.layouts import Floats
from syncline.planning.elimination.ordering import RULES, Ordering, follow, greedy
from syncline.planning.elimination.problem import EdgeCosts, Structure, build, check_node_costs, greatest_size
from syncline.planning.elimination.pruning import bound, bounding_pays, dominance_pays
from syncline.planning.elimination.repetition import blockwise
from syncline.planning.elimination.solution import Solution, Statistics
from syncline.planning.elimination.tabulation import Tabulation

Pruning = Literal["auto", "always", "never"]
TABLE_BYTES = 2 << 30


class Solver:
    """Solves one graph again and again with different node costs.

    The checks, the layout classes, the equal tables and the order are found once; each solve starts from
    the bounds and the best choice of the one before.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        edge_costs: EdgeCosts,
        *,
        order: Sequence[int] | None = None,
        prune: Pruning = "auto",
        fold: bool = True,
        table_bytes: int = TABLE_BYTES,
    ) -> None:
        """Prepares the graph; ``sizes`` counts each node's configurations, the rest is as in ``solve``."""
        began = time.perf_counter()
        structure = build(sizes, edge_costs)
        self._neighbours = structure.neighbours()
        self._order = order
        self._first = (
            greedy(self._neighbours, sizes, RULES[0]) if order is None else follow(order, self._neighbours)
        )
        if not is_cheap(sum(self._first.cells(sizes))):
            structure = structure.collapsed()
        self._true = self._finite = structure
        self._prune: Pruning = prune
        self._fold = fold
        self._table_bytes = table_bytes
        self._found: tuple[list[int], tuple[Ordering, float]] | None = None
        self._reach = self._true.reach()
        self._cap = np.inf if self._reach is None else 0.0
        self._remembered: WarmStart | None = None
        self._last_choice: tuple[int, ...] | None = None
        self._preparation_s = time.perf_counter() - began

    def solve(self, node_costs: Sequence[ArrayLike]) -> Solution:
        """A best choice for these node costs; see the function ``solve``."""
        began = time.perf_counter() - self._preparation_s
        self._preparation_s = 0.0
        costs = self._checked(node_costs)
        instance = Instance(self._finite_for(costs), costs)
        passes, plan = 0, Schedule()
        if not instance.forbid_infinite():
            choice = (0,) * len(costs)
        else:
            passes = self._cross_out(instance)
            choice, plan = self._eliminate(instance)
            self._last_choice = choice
        value = math.fsum(Instance(self._true, costs).terms(choice))
        computed = plan.computed()
        return Solution(
            value=value,
            choice=choice,
            statistics=Statistics(
                space=math.prod(self._true.sizes),
                configurations=sum(self._true.sizes),
                kept=sum(instance.sizes()),
                passes=passes,
                width=plan.width,
                steps=len(plan.steps),
                tables=len(computed),
                cells=plan.cells,
                seconds=time.perf_counter() - began,
            ),
        )

    def marginals(self, node_costs: Sequence[ArrayLike], node: int) -> Floats:
        """For each configuration k of the node, the least F of all choices with x_node = k.

        The lowest is F*; the next says what the second best configuration of this node would cost in all.
        All other nodes are eliminated without pruning, so this takes longer than a solve.
        """
        costs = self._checked(node_costs)
        instance = Instance(self._finite_for(costs), costs)
        found = np.full(len(costs[node]), np.inf)
        if not instance.forbid_infinite():
            return found
        plan = schedule(instance, blockwise(instance, last=node)[0], fold=self._fold)
        self._check_memory(plan, range(len(costs)))
        least = instance.costs[node] + Tabulation(plan, instance.costs).around_last()
        kept = instance.kept[node]
        found[slice(None) if kept is None else kept] = least
        found[found > self._cap / 2] = np.inf
        return found

    def _checked(self, node_costs: Sequence[ArrayLike]) -> list[Floats]:
        costs = check_node_costs(node_costs)
        if len(costs) != len(self._true.sizes):
            raise ValueError(
                f"There are costs of {len(costs)} nodes, but the graph has {len(self._true.sizes)}."
            )
        for node, (vector, size) in enumerate(zip(costs, self._true.sizes, strict=True)):
            if len(vector) != size:
                raise ValueError(
                    f"Node {node} has {size} configurations, but {len(vector)} costs were given."
                )
        return costs

    def _finite_for(self, costs: Sequence[Floats]) -> Structure:
        """The structure with a cap for forbidden edges that no allowed choice can reach half of."""
        if self._reach is None:
            return self._true
        needed = 3.0 * (self._reach + math.fsum(greatest_size(vector) for vector in costs)) + 1.0
        if needed > self._cap:
            self._cap = 2.0 * needed
            self._finite, self._remembered = self._true.capped(self._cap), None
        return self._finite

    def _cross_out(self, instance: Instance) -> int:
        """Prunes as far as it pays, and says how many passes of bounds that took."""
        if self._prune == "never":
            return 0
        always = self._prune == "always"
        effort = Effort(instance, self._first)
        passes = 0
        if always or self._should_bound(instance, effort):
            ascent = Ascent(instance, self._finite.sweep, start=self._remembered, ceiling=self._cap / 2)
            known = self._last_choice and instance.remaining(self._last_choice)
            if known:
                ascent.offer(known)
            bound(ascent, effort, least=4 if always else 0)
            self._remembered, passes = ascent.remembered, ascent.passes
        if always or dominance_pays(instance, effort):
            drop_dominated(instance)
        return passes

    def _should_bound(self, instance: Instance, effort: Effort) -> bool:
        if not bounding_pays(instance, effort.plain()):
            return False
        return (
            not self._fold
            or bounding_pays(instance, effort.folded())
            or bounding_pays(instance, self._ordering(instance)[1])
        )

    def _eliminate(self, instance: Instance) -> tuple[tuple[int, ...], Schedule]:
        rest, nodes = instance.undecided()
        if self._order is not None:
            number = {node: at for at, node in enumerate(nodes)}
            ordering = follow([number[node] for node in self._order if node in number], rest.neighbours())
        elif len(nodes) == len(instance.costs):
            ordering, _ = self._ordering(instance)
        else:
            ordering, _ = cheapest_ordering(rest, fold=self._fold)
        plan = schedule(rest, ordering, fold=self._fold and not Effort(rest, ordering).is_cheap())
        self._check_memory(plan, nodes)
        chosen = [0] * len(instance.costs)
        for node, configuration in zip(nodes, Tabulation(plan, rest.costs).choice(), strict=True):
            chosen[node] = configuration
        return instance.originals(chosen), plan

    def _ordering(self, instance: Instance) -> tuple[Ordering, float]:
        """An order for all nodes, kept for the next solve, and its cells."""
        if self._order is not None:
            return self._first, sum(self._first.cells(instance.sizes()))
        sizes = instance.sizes()
        if self._found is None or self._found[0] != sizes:
            self._found = (sizes, cheapest_ordering(instance, fold=self._fold, first=self._first))
        return self._found[1]

    def _check_memory(self, plan: Schedule, nodes: Sequence[int]) -> None:
        if not plan.steps:
            return
        needed, node = plan.peak_bytes()
        if needed > self._table_bytes:
            raise PlanningError(
                f"The search needs tables of {_gigabytes(needed)}, more than the "
                f"{_gigabytes(self._table_bytes)} that it may use; the largest is that of node "
                f"{nodes[node]}, and a table depends on up to {plan.width} other nodes.\n"
                "Give nodes fewer configurations, raise table_bytes, or leave the order of elimination open."
            )


def _gigabytes(count: int) -> str:
    return f"{Decimal(count) / 10**9:.3g} GB"  # what a table could need may exceed any float
