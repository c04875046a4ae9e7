"""The exact search: the choice of one configuration a node that costs least in all.

    F(x) = sum over nodes v of c_v(x_v)  +  sum over edges (u, v) of e_uv(x_u, x_v)

with c_v the node costs and e_uv the edge costs; F* is its minimum over all x. This is PaSE's dynamic
program, in the words of its time min-sum variable elimination: eliminating v replaces all terms with x_v
by the message  m(x_D) = min over x_v of their sum,  over the set D of nodes that share a term with v. Any
order of elimination gives F*; it decides only how large the messages get. Around it:

- ``layouts``: messages are indexed by classes of configurations that look alike;
- ``bounds``: configurations that no best choice can have are crossed out first, where that pays;
- ``dominance``: so are those that another one can always replace;
- ``ordering``: the order that three greedy rules find cheapest;
- ``folding``: tables that repeat, as the layers of a transformer do, are computed once;
- ``tabulation``: dense NumPy arrays, integer back-pointers, bounded blocks.

The memory of a device is no part of F: callers price it into the node costs and solve again with a
``Solver``, which keeps all that does not depend on them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from syncline.errors import PlanningError
from syncline.planning.bounds import Ascent, WarmStart
from syncline.planning.dominance import drop_dominated
from syncline.planning.dominance import effort as dominance_effort
from syncline.planning.folding import Schedule, schedule
from syncline.planning.instance import Instance
from syncline.planning.layouts import Floats
from syncline.planning.ordering import RULES, Ordering, follow, greedy, last
from syncline.planning.problem import (
    EdgeCosts,
    LayoutCosts,
    Structure,
    build,
    check_node_costs,
    greatest_size,
)
from syncline.planning.pruning import Effort, bound, pays
from syncline.planning.tabulation import Tabulation

__all__ = ["LayoutCosts", "Solution", "Solver", "Statistics", "evaluate", "solve"]

Pruning = Literal["auto", "always", "never"]
TABLE_BYTES = 2 << 30
CHEAP_CELLS = 200_000
"""Below this many cells a better order is not worth looking for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How a solution was found."""

    space: int
    """The number of choices there are: the product of all numbers of configurations."""
    configurations: int
    """The configurations of all nodes together."""
    kept: int
    """How many of them were left when the elimination began."""
    passes: int
    """The passes of bounds that were run."""
    width: int
    """The largest number of nodes that a message depended on."""
    steps: int
    """The nodes that were eliminated; the others had one configuration left."""
    tables: int
    """The tables computed; the other steps repeated one of them."""
    cells: int
    """The cells of these tables."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A best choice."""

    value: float
    """F of the choice, and so F*; inf if every choice is forbidden."""
    choice: tuple[int, ...]
    """The configuration of each node."""
    statistics: Statistics


def solve(
    node_costs: Sequence[ArrayLike],
    edge_costs: EdgeCosts,
    *,
    order: Sequence[int] | None = None,
    prune: Pruning = "auto",
    fold: bool = True,
    table_bytes: int = TABLE_BYTES,
) -> Solution:
    """Finds a choice of one configuration a node with the least total cost F (see the module).

    Costs may be +inf (forbidden) and negative. The graph may have several components, and an edge in both
    directions (their costs add up). The same input always gives the same choice.

    Args:
        node_costs: for each node v the vector c_v.
        edge_costs: for each edge (u, v) the matrix e_uv, as an array or by layout.
        order: the nodes in order of elimination; by default a good one is found.
        prune: whether to cross out configurations first: when it pays, always or never.
        fold: whether equal tables are computed once.
        table_bytes: the most that messages and back-pointers may take at once.

    Raises:
        ValueError: if the costs do not describe such a problem.
        PlanningError: if the tables do not fit ``table_bytes``.
    """
    costs = check_node_costs(node_costs)
    solver = Solver(
        [len(vector) for vector in costs],
        edge_costs,
        order=order,
        prune=prune,
        fold=fold,
        table_bytes=table_bytes,
    )
    return solver.solve(costs)


def evaluate(node_costs: Sequence[ArrayLike], edge_costs: EdgeCosts, choice: Sequence[int]) -> float:
    """F of a choice: the sum of the chosen node and edge costs."""
    terms = [float(np.asarray(costs)[chosen]) for costs, chosen in zip(node_costs, choice, strict=True)]
    for (u, v), costs in edge_costs.items():
        if isinstance(costs, LayoutCosts):
            terms.append(float(np.asarray(costs.matrix)[costs.rows[choice[u]], costs.cols[choice[v]]]))
        else:
            terms.append(float(np.asarray(costs)[choice[u], choice[v]]))
    return math.fsum(terms)


class Solver:
    """Solves one graph again and again with different node costs.

    The checks, the layout classes and the equal tables are found once; each solve starts from the bounds
    and the best choice of the one before. Edge arrays must not be changed meanwhile.
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
        """Prepares the graph; ``sizes`` says how many configurations each node has, the rest is as in ``solve``."""
        began = time.perf_counter()
        self._true = self._finite = build(sizes, edge_costs)
        self._prune: Pruning = prune
        self._fold = fold
        self._table_bytes = table_bytes
        self._neighbours = self._true.neighbours()
        self._order = None if order is None else follow(order, self._neighbours).order
        self._reach = self._true.reach()
        self._cap = 0.0
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
        plan = schedule(instance, greedy(self._neighbours, instance.sizes(), last(node)), fold=self._fold)
        self._check_memory(plan)
        least = instance.costs[node] + Tabulation(plan, instance.costs).around_last()
        kept = instance.kept[node]
        found[slice(None) if kept is None else kept] = least
        found[found > self._cap / 2] = np.inf
        return found

    def _checked(self, node_costs: Sequence[ArrayLike]) -> list[Floats]:
        costs = check_node_costs(node_costs)
        sizes = tuple(len(vector) for vector in costs)
        if sizes != self._true.sizes:
            raise ValueError(
                f"The node costs have {sizes} entries; the graph has {self._true.sizes} configurations."
            )
        return costs

    def _finite_for(self, costs: Sequence[Floats]) -> Structure:
        """The structure with a cap for forbidden edges that no allowed choice can reach half of."""
        needed = 3.0 * (self._reach + math.fsum(greatest_size(vector) for vector in costs)) + 1.0
        if needed > self._cap:
            self._cap = 2.0 * needed
            capped = self._true.capped(self._cap)
            if capped is not self._finite:
                self._finite, self._remembered = capped, None
        return self._finite

    def _cross_out(self, instance: Instance) -> int:
        """Prunes as far as it pays, and says how many passes of bounds that took."""
        if self._prune == "never":
            return 0
        always = self._prune == "always"
        effort = Effort(instance, greedy(self._neighbours, instance.sizes(), RULES[0]))
        passes = 0
        if always or pays(instance, effort):
            ascent = Ascent(instance, self._finite.sweep, start=self._remembered, ceiling=self._cap / 2)
            known = self._last_choice and instance.remaining(self._last_choice)
            if known:
                ascent.offer(known)
            bound(ascent, effort, least=4 * always)
            self._remembered, passes = ascent.remembered, ascent.passes
        if always or effort.folded() > 2 * dominance_effort(instance):
            drop_dominated(instance)
        return passes

    def _eliminate(self, instance: Instance) -> tuple[tuple[int, ...], Schedule]:
        rest, nodes = instance.undecided()
        plan = schedule(rest, self._ordering(rest, nodes), fold=self._fold)
        self._check_memory(plan)
        chosen = [0] * len(instance.costs)
        for node, configuration in zip(nodes, Tabulation(plan, rest.costs).choice(), strict=True):
            chosen[node] = configuration
        return instance.originals(chosen), plan

    def _ordering(self, rest: Instance, nodes: Sequence[int]) -> Ordering:
        around: list[set[int]] = [set() for _ in nodes]
        for u, v in rest.ends:
            around[u].add(v)
            around[v].add(u)
        if self._order is not None:
            number = {node: at for at, node in enumerate(nodes)}
            return follow([number[node] for node in self._order if node in number], around)
        sizes = rest.sizes()
        best = greedy(around, sizes, RULES[0])
        least = Effort(rest, best).folded()
        for rule in RULES[1:]:
            if least <= CHEAP_CELLS:
                break
            other = greedy(around, sizes, rule)
            if (cells := Effort(rest, other).folded()) < least:
                best, least = other, cells
        return best

    def _check_memory(self, plan: Schedule) -> None:
        if not plan.steps:
            return
        needed, node = plan.peak_bytes()
        if needed > self._table_bytes:
            raise PlanningError(
                f"The search needs tables of {needed / 1e9:.3g} GB, more than the "
                f"{self._table_bytes / 1e9:.3g} GB that it may use; the largest is that of node {node}, "
                f"and a table depends on up to {plan.width} other nodes.\n"
                "Give nodes fewer configurations, raise table_bytes, or leave the order of elimination open."
            )
