"""Elimination orders: which node to eliminate next, so that the tables stay small.

Eliminating v builds a table over v and its neighbours, then joins the neighbours to one another. Any
order gives the optimum; finding the cheapest is NP-hard, so three greedy rules compete.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Graph = list[set[int]]
Rule = Callable[[int, Graph, Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Ordering:
    """An elimination order and the dependent set that each node has in it.

    ``scopes[i]`` holds the later nodes that the table of ``order[i]`` depends on: D(i) of PaSE.
    """

    order: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """The size of the largest dependent set, max |D(i)|."""
        return max(map(len, self.scopes), default=0)

    def cells(self, sizes: Sequence[int]) -> list[int]:
        """The cells of each table: the product of K(u) over u in {v} and its dependent set."""
        return [
            sizes[node] * math.prod(sizes[other] for other in scope)
            for node, scope in zip(self.order, self.scopes, strict=True)
        ]

    def padded(self) -> NDArray[np.intp]:
        """One row a step: the node, its dependent set, and the number of nodes as filler."""
        table = np.full((len(self.order), self.width + 1), len(self.order), dtype=np.intp)
        for row, (node, scope) in enumerate(zip(self.order, self.scopes, strict=True)):
            table[row, : len(scope) + 1] = (node, *scope)
        return table


def min_degree(node: int, graph: Graph, weights: Sequence[float]) -> float:
    """The number of neighbours: GENERATESEQ of PaSE."""
    return len(graph[node])


def min_weight(node: int, graph: Graph, weights: Sequence[float]) -> float:
    """The logarithm of the cells of the node's table."""
    return weights[node] + sum(weights[other] for other in graph[node])


def min_fill(node: int, graph: Graph, weights: Sequence[float]) -> float:
    """The number of neighbour pairs that would have to be joined."""
    around = graph[node]
    joined = sum(len(graph[other] & around) for other in around)
    return (len(around) * (len(around) - 1) - joined) / 2


RULES: tuple[Rule, ...] = (min_degree, min_weight, min_fill)


def greedy(neighbours: Graph, sizes: Sequence[int], rule: Rule) -> Ordering:
    """Always eliminates the node that the rule scores lowest, the lowest number among equals."""
    graph = [set(around) for around in neighbours]
    weights = [math.log(size) for size in sizes]
    scores = [rule(node, graph, weights) for node in range(len(graph))]
    heap = [(score, node) for node, score in enumerate(scores)]
    heapq.heapify(heap)
    done = [False] * len(graph)
    order: list[int] = []
    scopes: list[tuple[int, ...]] = []
    while heap:
        score, node = heapq.heappop(heap)
        if done[node] or score != scores[node]:
            continue
        done[node] = True
        around = _eliminate(node, graph)
        order.append(node)
        scopes.append(tuple(sorted(around)))
        touched = around.union(*(graph[other] for other in around)) if rule is min_fill else around
        for other in touched:
            scores[other] = rule(other, graph, weights)
            heapq.heappush(heap, (scores[other], other))
    return Ordering(tuple(order), tuple(scopes))


def follow(order: Sequence[int], neighbours: Graph) -> Ordering:
    """The ordering of a given order.

    Raises:
        ValueError: if it does not name each node exactly once.
    """
    if sorted(order) != list(range(len(neighbours))):
        raise ValueError(f"An elimination order must name each of the {len(neighbours)} nodes exactly once.")
    graph = [set(around) for around in neighbours]
    return Ordering(tuple(order), tuple(tuple(sorted(_eliminate(node, graph))) for node in order))


def _eliminate(node: int, graph: Graph) -> set[int]:
    around = graph[node]
    for other in around:
        graph[other] |= around
        graph[other] -= {other, node}
    return around
