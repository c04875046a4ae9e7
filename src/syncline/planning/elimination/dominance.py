"""Crosses out configurations that another one of the same node can always replace. Costs must be finite.

Configuration b of node v dominates a if choosing b instead of a never costs more, whatever the
neighbours choose:

    c_v(b) - c_v(a) + sum over edges (v, w) of  max over j of ( e_vw(b, j) - e_vw(a, j) )  <=  0
"""

from __future__ import annotations

import numpy as np

from syncline.planning.elimination.folding import number_equal
from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.layouts import Floats, Ints, Table


def effort(instance: Instance) -> int:
    """The comparisons that dropping dominated configurations of the instance would take."""
    total = 0
    for (node, *_), tables in zip(*_distinct(instance), strict=True):
        total += sum(len(instance.costs[node]) * table.matrix.size for table in tables)
    return total


def drop_dominated(instance: Instance) -> int:
    """Crosses out every configuration that another remaining one dominates, and says how many.

    Among configurations that dominate each other the lowest stays. Equal nodes are compared once.
    """
    before = sum(instance.sizes())
    for nodes, tables in zip(*_distinct(instance), strict=True):
        remaining = undominated(instance.costs[nodes[0]], tables)
        if len(remaining) < len(instance.costs[nodes[0]]):
            for node in nodes:
                instance.restrict(node, remaining)
    return before - sum(instance.sizes())


def undominated(costs: Floats, tables: list[Table]) -> Ints:
    """The configurations of a node that no other remaining one dominates.

    Args:
        costs: the node's own costs.
        tables: the tables of its edges, with the node's configurations as rows.
    """
    excess = costs[:, None] - costs[None, :]  # [b, a]: what b costs more than a
    for table in tables:
        worst = _worst_difference(table.matrix)
        excess = excess + (
            worst if table.rows is None else worst[np.ix_(table.rows.labels, table.rows.labels)]
        )
    can_replace = excess <= 0
    np.fill_diagonal(can_replace, False)
    alive = np.ones(len(costs), dtype=bool)
    for a in np.flatnonzero(can_replace.any(axis=0))[::-1]:
        alive[a] = not (can_replace[:, a] & alive).any()
    return np.flatnonzero(alive)


def _worst_difference(matrix: Floats) -> Floats:
    """out[b, a] = max over j of matrix[b, j] - matrix[a, j]."""
    return np.stack([(row - matrix).max(axis=1) for row in matrix])


def _distinct(instance: Instance) -> tuple[list[list[int]], list[list[Table]]]:
    """Groups nodes with equal costs and equal edges; with each group, its tables seen from the node."""
    numbers = number_equal(instance.costs)
    groups: dict[object, list[int]] = {}
    for node, number in enumerate(numbers):
        out = sorted(id(instance.tables[edge]) for edge in instance.outgoing[node])
        into = sorted(id(instance.tables[edge]) for edge in instance.incoming[node])
        groups.setdefault((number, tuple(out), tuple(into)), []).append(node)
    seen = [
        [instance.tables[edge] for edge in instance.outgoing[nodes[0]]]
        + [instance.tables[edge].transposed() for edge in instance.incoming[nodes[0]]]
        for nodes in groups.values()
    ]
    return list(groups.values()), seen
