"""The search as a function, and the value of a choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from syncline.planning.elimination.problem import EdgeCosts, LayoutCosts
from syncline.planning.elimination.solution import Solution
from syncline.planning.elimination.solver import TABLE_BYTES, Pruning, Solver


def solve(
    node_costs: Sequence[ArrayLike],
    edge_costs: EdgeCosts,
    *,
    order: Sequence[int] | None = None,
    prune: Pruning = "auto",
    fold: bool = True,
    table_bytes: int = TABLE_BYTES,
) -> Solution:
    """Finds a choice of one configuration a node with the least total cost F (see the package).

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
    sizes = [np.size(vector) for vector in node_costs]
    solver = Solver(sizes, edge_costs, order=order, prune=prune, fold=fold, table_bytes=table_bytes)
    return solver.solve(node_costs)


def evaluate(node_costs: Sequence[ArrayLike], edge_costs: EdgeCosts, choice: Sequence[int]) -> float:
    """F of a choice: the sum of the chosen node and edge costs."""
    terms = [float(np.asarray(costs)[chosen]) for costs, chosen in zip(node_costs, choice, strict=True)]
    for (u, v), costs in edge_costs.items():
        if isinstance(costs, LayoutCosts):
            terms.append(float(np.asarray(costs.matrix)[costs.rows[choice[u]], costs.cols[choice[v]]]))
        else:
            terms.append(float(np.asarray(costs)[choice[u], choice[v]]))
    return math.fsum(terms)
