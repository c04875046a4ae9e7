"""An elimination order for graphs that repeat: equal parts are eliminated alike, so that they fold.

The usual rules work along a chain of equal blocks from its end, where each table holds what came before
and so equals no other. Here a table that is needed m times over costs a node 1/m of its cells, and nothing
once it is known: the inside of all blocks goes first, at the price of one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable

from syncline.planning.elimination.folding import number_equal
from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.ordering import Ordering


def blockwise(instance: Instance, *, last: int | None = None) -> tuple[Ordering, float]:
    """Always takes the node whose table costs least, shared by all nodes that need an equal one.

    Args:
        instance: what to eliminate.
        last: a node to keep for the end.

    Returns:
        The order, and the cells of all its tables when equal ones are computed once.
    """
    return _Blockwise(instance, last).run()


class _Blockwise:
    def __init__(self, instance: Instance, last: int | None) -> None:
        self._last = last
        self._sizes = instance.sizes()
        self._own = number_equal(instance.costs)
        self._factors: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in self._sizes]
        numbers: dict[int, int] = {}
        for ends, table in zip(instance.ends, instance.tables, strict=True):
            number = numbers.setdefault(id(table), len(numbers))
            for node in ends:
                self._factors[node].append((number, ends))
        self._messages: dict[Hashable, int] = {}
        self._first_message = len(numbers)
        self._keys: list[Hashable] = [None] * len(self._sizes)
        self._scopes: list[tuple[int, ...]] = [()] * len(self._sizes)
        self._alike: dict[Hashable, set[int]] = {}
        self._heap: list[tuple[float, int]] = []
        self._cells = 0.0

    def run(self) -> tuple[Ordering, float]:
        for node in range(len(self._sizes)):
            self._describe(node)
        for node in range(len(self._sizes)):
            heapq.heappush(self._heap, (self._score(node), node))
        left = [True] * len(self._sizes)
        order, scopes = [], []
        while self._heap:
            score, node = heapq.heappop(self._heap)
            if not left[node]:
                continue
            now = self._score(node)
            if now > score:
                heapq.heappush(self._heap, (now, node))
                continue
            left[node] = False
            order.append(node)
            scopes.append(tuple(sorted(self._scopes[node])))
            self._eliminate(node)
        return Ordering(tuple(order), tuple(scopes)), self._cells

    def _score(self, node: int) -> float:
        if node == self._last:
            return math.inf
        key = self._keys[node]
        if key in self._messages:
            return 0.0
        return self._table_cells(node) / len(self._alike[key])

    def _table_cells(self, node: int) -> float:
        return math.prod((self._sizes[other] for other in self._scopes[node]), start=float(self._sizes[node]))

    def _describe(self, node: int) -> None:
        """Finds what the table of the node would be made of, and which nodes it is shared with."""
        factors = self._factors[node]
        factors.sort(key=lambda factor: (factor[0], factor[1].index(node)))
        places = {node: -1}
        made_of = []
        for number, nodes in factors:
            made_of.append((number, *[places.setdefault(other, len(places) - 1) for other in nodes]))
        self._scopes[node] = tuple(places)[1:]
        key = self._keys[node] = (self._own[node], *made_of)
        self._alike.setdefault(key, set()).add(node)

    def _eliminate(self, node: int) -> None:
        key, scope = self._keys[node], self._scopes[node]
        self._alike[key].discard(node)
        if key not in self._messages:
            self._cells += self._table_cells(node)
            self._messages[key] = self._first_message + len(self._messages)
            for other in self._alike[key]:
                heapq.heappush(self._heap, (0.0, other))
        message = (self._messages[key], scope)
        for other in scope:
            self._alike[self._keys[other]].discard(other)
            self._factors[other] = [factor for factor in self._factors[other] if node not in factor[1]] + [
                message
            ]
        for other in scope:
            self._describe(other)
        for other in scope:
            heapq.heappush(self._heap, (self._score(other), other))
