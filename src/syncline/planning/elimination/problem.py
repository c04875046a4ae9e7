"""The problem that the search solves: a graph whose nodes choose one configuration each.

It checks what it is given, sums parallel edges, and makes one table of equal arrays. Nothing here depends
on node costs, so one structure serves many solves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from syncline.planning.elimination.layouts import Classes, Floats, Ints, Table, collapse, shared


@dataclass(frozen=True, slots=True, eq=False)
class LayoutCosts:
    """The costs of an edge (u, v) given by layout: [i, j] costs ``matrix[rows[i], cols[j]]``.

    For callers that know the layouts, so that the full matrix is never built.
    """

    matrix: ArrayLike
    rows: Sequence[int] | NDArray[np.integer]
    cols: Sequence[int] | NDArray[np.integer]


EdgeCosts = Mapping[tuple[int, int], ArrayLike | LayoutCosts]


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge between different nodes; ``u`` comes before ``v`` in the structure's sweep."""

    u: int
    v: int
    table: Table


@dataclass(frozen=True, slots=True)
class Structure:
    """All of a problem but its node costs."""

    sizes: tuple[int, ...]
    """The number of configurations of each node."""
    edges: tuple[Edge, ...]
    """At most one between two nodes."""
    sweep: tuple[int, ...]
    """The nodes, producers before consumers where the directions of the edges allow it."""

    def distinct(self) -> dict[int, Table]:
        """The distinct tables of the edges, by identity."""
        return {id(edge.table): edge.table for edge in self.edges}

    def reach(self) -> float | None:
        """The sum over the edges of their greatest finite cost, in size; None if all costs are finite."""
        distinct = self.distinct()
        if all(table.matrix.max() < np.inf for table in distinct.values()):
            return None
        greatest = {key: greatest_size(table.matrix) for key, table in distinct.items()}
        return math.fsum(greatest[id(edge.table)] for edge in self.edges)

    def capped(self, cap: float) -> Structure:
        """The structure with ``cap`` in place of infinite edge costs."""
        tables = {
            key: Table(np.minimum(table.matrix, cap), table.rows, table.cols)
            for key, table in self.distinct().items()
        }
        return self._with(tables)

    def collapsed(self) -> Structure:
        """The structure with equal rows and columns of each matrix kept once, as layout classes."""
        known: dict[bytes, Classes] = {}
        tables = {key: collapse(table, known) for key, table in self.distinct().items()}
        return self._with(tables)

    def _with(self, tables: Mapping[int, Table]) -> Structure:
        edges = tuple(Edge(edge.u, edge.v, tables[id(edge.table)]) for edge in self.edges)
        return Structure(self.sizes, edges, self.sweep)

    def neighbours(self) -> list[set[int]]:
        """The neighbours of each node."""
        found: list[set[int]] = [set() for _ in self.sizes]
        for edge in self.edges:
            found[edge.u].add(edge.v)
            found[edge.v].add(edge.u)
        return found


def build(sizes: Sequence[int], edge_costs: EdgeCosts) -> Structure:
    """Checks the edges and prepares them.

    Raises:
        ValueError: for a self edge, an unknown node, a wrong shape, or a cost that is NaN or -inf.
    """
    for node, size in enumerate(sizes):
        if size < 1:
            raise ValueError(f"Node {node} has no configuration; each node needs at least one.")
    tables = _Tables()
    found: dict[tuple[int, int], Table] = {}
    for (u, v), costs in edge_costs.items():
        _check_ends(u, v, len(sizes))
        table = tables.of(costs, (u, v), (sizes[u], sizes[v]))
        if (v, u) in found:
            dense = found[v, u].dense() + table.dense().T
            found[v, u] = tables.of(dense, (v, u), dense.shape)
        else:
            found[u, v] = table
    sweep = _producers_first(len(sizes), found)
    place = {node: at for at, node in enumerate(sweep)}
    edges = [
        Edge(u, v, table) if place[u] < place[v] else Edge(v, u, tables.flipped(table))
        for (u, v), table in found.items()
    ]
    return Structure(tuple(sizes), tuple(edges), tuple(sweep))


def check_node_costs(node_costs: Sequence[ArrayLike]) -> list[Floats]:
    """The node costs as vectors of float64.

    Raises:
        ValueError: for an empty or many-dimensional array, or a cost that is NaN or -inf.
    """
    checked: list[Floats] = []
    seen: dict[int, Floats] = {}
    for node, given in enumerate(node_costs):
        if id(given) in seen:
            checked.append(seen[id(given)])
            continue
        costs = seen[id(given)] = np.asarray(given, dtype=np.float64)
        if costs.ndim != 1 or not costs.size:
            raise ValueError(
                f"The costs of node {node} have shape {costs.shape}; "
                "a node needs a vector with one cost a configuration, and at least one."
            )
        _check_values(costs, f"node {node}")
        checked.append(costs)
    return checked


def greatest_size(costs: Floats) -> float:
    """The greatest |c| over the finite costs c, or 0."""
    return float(np.abs(costs, where=np.isfinite(costs), out=np.zeros_like(costs)).max())


def _check_ends(u: int, v: int, count: int) -> None:
    if u == v:
        raise ValueError(
            f"Edge ({u}, {v}) joins node {u} to itself; add such a cost to the node's own costs."
        )
    for node in (u, v):
        if not 0 <= node < count:
            raise ValueError(f"Edge ({u}, {v}) names node {node}, but the nodes are 0 to {count - 1}.")


def _check_values(costs: Floats, owner: str) -> None:
    if not costs.min() > -np.inf:  # false for NaN too
        raise ValueError(
            f"The costs of {owner} hold NaN or -inf; a cost is a number, or +inf for a forbidden choice."
        )


class _Tables:
    """Makes a table of each distinct cost matrix once, however many edges carry it."""

    def __init__(self) -> None:
        self._by_object: dict[int, tuple[object, Table]] = {}
        self._by_sample: dict[tuple[object, ...], list[tuple[Floats, Table]]] = {}
        self._by_labels: dict[bytes, Classes] = {}
        self._flipped: dict[int, Table] = {}

    def of(self, costs: ArrayLike | LayoutCosts, ends: tuple[int, int], shape: tuple[int, ...]) -> Table:
        known = self._by_object.get(id(costs))
        if known is None:
            table = self._given(costs, ends) if isinstance(costs, LayoutCosts) else self._equal(costs, ends)
            self._by_object[id(costs)] = known = (costs, table)  # holding costs keeps its id taken
        table = known[1]
        _check_shape(table, ends, shape)
        return table

    def flipped(self, table: Table) -> Table:
        if id(table) not in self._flipped:
            self._flipped[id(table)] = table.transposed()
        return self._flipped[id(table)]

    def _equal(self, costs: ArrayLike, ends: tuple[int, int]) -> Table:
        matrix = np.asarray(costs, dtype=np.float64)
        if matrix.ndim != 2 or not matrix.size:
            raise ValueError(f"The costs of edge {ends} have shape {matrix.shape}; they must be a matrix.")
        sample = (matrix.shape, matrix.ravel()[:: 1 + matrix.size // 16].tobytes())
        alike = self._by_sample.setdefault(sample, [])
        for other, table in alike:
            if np.array_equal(other, matrix):
                return table
        _check_values(matrix, f"edge {ends}")
        table = Table(np.array(matrix, order="C"), None, None)
        alike.append((matrix, table))
        return table

    def _given(self, costs: LayoutCosts, ends: tuple[int, int]) -> Table:
        matrix = np.asarray(costs.matrix, dtype=np.float64)
        rows, cols = np.asarray(costs.rows, dtype=np.intp), np.asarray(costs.cols, dtype=np.intp)
        wrong = matrix.ndim != 2 or not matrix.size or rows.ndim != 1 or cols.ndim != 1
        if wrong or not (_indexes(rows, matrix.shape[0]) and _indexes(cols, matrix.shape[1])):
            raise ValueError(f"The layouts of edge {ends} do not index its matrix of shape {matrix.shape}.")
        _check_values(matrix, f"edge {ends}")
        (picked_rows, by_row), (picked_cols, by_col) = _picked(rows), _picked(cols)
        matrix = matrix[np.ix_(picked_rows, picked_cols)]
        return Table(matrix, shared(by_row, self._by_labels), shared(by_col, self._by_labels))


def _picked(labels: Ints) -> tuple[Ints, Classes | None]:
    classes = Classes.of(labels)
    return (labels, None) if classes.count == len(labels) else (labels[classes.first], classes)


def _indexes(labels: Ints, count: int) -> bool:
    return labels.size > 0 and labels.min() >= 0 and labels.max() < count


def _check_shape(table: Table, ends: tuple[int, int], shape: tuple[int, ...]) -> None:
    rows = table.matrix.shape[0] if table.rows is None else len(table.rows.labels)
    cols = table.matrix.shape[1] if table.cols is None else len(table.cols.labels)
    if (rows, cols) != tuple(shape):
        raise ValueError(
            f"The costs of edge {ends} are {rows} by {cols}, "
            f"but its nodes have {shape[0]} and {shape[1]} configurations."
        )


def _producers_first(count: int, pairs: Mapping[tuple[int, int], Table]) -> list[int]:
    """The nodes in reverse postorder of the directed graph: topological if it has no cycle."""
    if all(u < v for u, v in pairs):
        return list(range(count))
    after: list[list[int]] = [[] for _ in range(count)]
    inward = [0] * count
    for u, v in pairs:
        after[u].append(v)
        inward[v] += 1
    seen, postorder = [False] * count, []
    for root in sorted(range(count), key=lambda node: (inward[node] > 0, node)):
        stack = [(root, iter(after[root]))] if not seen[root] else []
        seen[root] = True
        while stack:
            node, rest = stack[-1]
            following = next((other for other in rest if not seen[other]), None)
            if following is None:
                postorder.append(node)
                stack.pop()
            else:
                seen[following] = True
                stack.append((following, iter(after[following])))
    return postorder[::-1]
