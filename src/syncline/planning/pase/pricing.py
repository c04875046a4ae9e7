"""Prices strategies: the cost of every layer and of every tensor between two, in FLOP equivalents.

F = sum over layers v of t(v) + sum over tensors (u, v) of 2 rho words(u, v)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from syncline.planning.elimination import LayoutCosts
from syncline.planning.pase.exchange import Edge
from syncline.planning.pase.layer import Layer
from syncline.planning.pase.layer_graph import LayerGraph
from syncline.planning.pase.terms import Floats, Shards

Ints = NDArray[np.int64]
Costs = LayoutCosts | Floats


def layer_costs(layer: Layer, parts: Ints, ratio: float) -> Floats:
    """The cost of a layer in each of these configurations."""
    shards = Shards(tuple(dim.size for dim in layer.nest.dims), parts, ratio)
    return sum((term.cost(shards) for term in layer.nest.terms), np.zeros(len(parts)))


class EdgeTables:
    """The costs of edges, each kind computed once."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._known: dict[tuple[object, ...], LayoutCosts] = {}

    def between(self, edge: Edge, source: Ints, target: Ints) -> LayoutCosts:
        """The costs of an edge for all configurations of both its layers."""
        key = (edge.factors, edge.held, edge.needed, source.tobytes(), target.tobytes())
        if key not in self._known:
            self._known[key] = edge.costs(source, target, self._ratio)
        return self._known[key]


def tables(
    graph: LayerGraph, parts: Sequence[Ints], ratio: float
) -> tuple[list[Floats], dict[tuple[int, int], Costs]]:
    """The costs of all layers and edges, as the search takes them; tensors between the same two add up."""
    nodes = [layer_costs(layer, rows, ratio) for layer, rows in zip(graph.layers, parts, strict=True)]
    between: dict[tuple[int, int], list[LayoutCosts]] = {}
    known = EdgeTables(ratio)
    for edge in graph.edges:
        costs = known.between(edge, parts[edge.source], parts[edge.target])
        between.setdefault((edge.source, edge.target), []).append(costs)
    return nodes, {pair: _sum(costs) for pair, costs in between.items()}


def _sum(costs: Sequence[LayoutCosts]) -> Costs:
    return costs[0] if len(costs) == 1 else reduce(np.add, map(full, costs))


def full(costs: Costs) -> Floats:
    """The costs of an edge, one row and column a configuration."""
    if not isinstance(costs, LayoutCosts):
        return costs
    return np.asarray(costs.matrix)[np.ix_(np.asarray(costs.rows), np.asarray(costs.cols))]


def total(graph: LayerGraph, strategy: Sequence[Ints], ratio: float) -> float:
    """F of one strategy: a configuration, as one row, for each layer."""
    nodes, edges = tables(graph, strategy, ratio)
    return math.fsum([*(cost.item() for cost in nodes), *(full(cost).item() for cost in edges.values())])
