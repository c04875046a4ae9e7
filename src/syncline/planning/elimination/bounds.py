"""Crosses out configurations that cannot be in a best choice, by bounds from both sides.

The problem is  F* = min over x of  sum_v c_v(x_v) + sum_(u,v) e_uv(x_u, x_v).

Lower bound. Any vectors p_uv, p_vu leave F unchanged when added to the nodes and taken from the edges:

    c'_v = c_v + sum_u p_uv            e'_uv(i, j) = e_uv(i, j) - p_vu(i) - p_uv(j)

and then  L = sum_v min c'_v + sum_uv min e'_uv <= F*.  A pass visits the nodes in sweep order (sequential
reweighted message passing; Kolmogorov, PAMI 2006 and 2015): a node gathers all that its edges hold into
its sum h_v, and hands each edge that leads on the share g_v h_v, where g_v = 1 / max(edges in, edges out);
the next node on that edge takes p = min over i of (e + g_v h_v - p back) from it. L never falls, passes
alternate in direction, and on a tree L becomes F*.

Upper bound. Before a pass, each node in turn picks the configuration that is best for the nodes already
visited and for what the others promise in their p; that is a whole choice, with value U.

Pruning. While v holds h_v, every choice with x_v = i costs at least L + h_v(i) - min h_v. Where that
exceeds U, no best choice uses i. Ties are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.layouts import Floats, Ints, Table

TOLERANCE = 1e-10
"""What a bound must exceed to count, relative to the terms of the best known choice: far above rounding."""
WORTHWHILE = 0.7
"""A node is restricted when no more than this part of its configurations survives: it copies its tables."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What one solve leaves for the next on the same structure; valid for any node costs."""

    forward: bool
    """The direction of the next pass."""
    held: tuple[Floats, ...]
    """What each edge holds from the node that handed it its share, by configuration of that node."""
    taken: tuple[Floats, ...]
    """What the node at its other end took from it, by configuration of that node."""


class Ascent:
    """Passes over an instance that raise L, lower U, and restrict the instance by them.

    All edge costs of the instance must be finite.
    """

    def __init__(
        self,
        instance: Instance,
        sweep: Sequence[int],
        *,
        start: WarmStart | None = None,
        ceiling: float = np.inf,
    ) -> None:
        """Prepares the first pass.

        Args:
            instance: what to bound; its configurations are crossed out in place.
            sweep: the nodes in the order of a forward pass.
            start: what an earlier ascent on the same structure remembered.
            ceiling: a choice of at least this value is not a choice at all.
        """
        self.instance = instance
        self.upper = np.inf
        self.passes = 0
        self.remembered = start
        self._sweep = list(sweep)
        self._ceiling = ceiling
        self._margin = 0.0
        self._guessing = start is not None
        self._handed = [0.0] * len(instance.tables)
        self._held: list[Floats] = (
            _zeros(instance) if start is None else _cut(instance, start.held, start.forward)
        )
        taken = _surely(instance) if start is None else _cut(instance, start.taken, not start.forward)
        self._taken = (taken, list(taken))  # at u and at v; the far one is written before it is read
        self._face(start is None or start.forward)
        self._retained = [float(self._at_rest(node).min()) for node in range(len(instance.costs))]
        self.lower = sum(self._retained)

    def offer(self, choice: Sequence[int]) -> None:
        """Lowers U to the value of this choice of remaining configurations, if it is lower."""
        terms = self.instance.terms(choice)
        value = math.fsum(terms)
        if value < min(self.upper, self._ceiling):
            self.upper = value
            self._margin = TOLERANCE * math.fsum(map(abs, terms))

    def run_pass(self) -> None:
        """Visits all nodes once, in the direction opposite to that of the last pass."""
        nodes = self._sweep if self._forward else self._sweep[::-1]
        if self._guessing:
            self._guess(nodes)
        self.lower = math.fsum(self._retained)  # between passes no edge has a part in L
        for node in nodes:
            gathered = self._gather(node)
            lowest = float(np.minimum.reduce(gathered))
            self._raise_lower(node, lowest)
            if self.upper < np.inf:
                survivors = self._survivors(gathered, lowest)
                if survivors is not None:
                    self._restrict(node, survivors)
                    gathered = gathered[survivors]
            self._hand_on(node, gathered, lowest)
        self._guessing = True
        self.passes += 1
        self._face(not self._forward)
        if all(kept is None for kept in self.instance.kept):
            self.remembered = WarmStart(self._forward, tuple(self._held), tuple(self._near))

    def _face(self, forward: bool) -> None:
        """Sets the direction of the next pass: which edges of a node come before it, which end is near."""
        edges = self.instance.incoming, self.instance.outgoing
        self._forward = forward
        self._before, self._after = edges if forward else edges[::-1]
        self._near, self._far = self._taken if forward else self._taken[::-1]

    def _promised(self, node: int) -> Floats:
        """The part of h that comes from the node itself and from nodes that the pass visits after it."""
        total = self.instance.costs[node]
        for edge in self._after[node]:
            total = total + self._near[edge]
        return total

    def _gather(self, node: int) -> Floats:
        """h of the node."""
        total = self._promised(node)
        for edge in self._before[node]:
            total = total + self._far[edge]
        return total

    def _raise_lower(self, node: int, lowest: float) -> None:
        """Replaces what the node and the edges before it had in L by what the node has now."""
        self.lower += lowest - self._retained[node]
        for edge in self._before[node]:
            self.lower -= self._handed[edge]
            self._handed[edge] = 0.0

    def _survivors(self, gathered: Floats, lowest: float) -> Ints | None:
        alive = gathered <= lowest + max(self.upper - self.lower, 0.0) + self._margin
        if np.count_nonzero(alive) > WORTHWHILE * len(alive):
            return None
        return alive.nonzero()[0]

    def _restrict(self, node: int, survivors: Ints) -> None:
        self.instance.restrict(node, survivors)
        for edge in self.instance.outgoing[node]:
            self._taken[0][edge] = self._taken[0][edge][survivors]
        for edge in self.instance.incoming[node]:
            self._taken[1][edge] = self._taken[1][edge][survivors]

    def _guess(self, nodes: Sequence[int]) -> None:
        """Chooses for one node after another, and offers the choice."""
        chosen = [0] * len(nodes)
        for node in nodes:
            total = self._promised(node)
            for edge in self._before[node]:
                u, v = self.instance.ends[edge]
                table = self.instance.tables[edge]
                total = total + (table.row(chosen[u]) if self._forward else table.col(chosen[v]))
            chosen[node] = int(total.argmin())
        self.offer(chosen)

    def _hand_on(self, node: int, gathered: Floats, lowest: float) -> None:
        after = self._after[node]
        share = 1.0 / max(len(self._before[node]), len(after), 1)
        self._retained[node] = (1.0 - len(after) * share) * lowest
        for edge in after:
            self._handed[edge] = share * lowest
            held = self._held[edge] = share * gathered - self._near[edge]
            self._far[edge] = send(self.instance.tables[edge], held, self._forward)

    def _at_rest(self, node: int) -> Floats:
        """The node's part of L between two passes."""
        total = self._promised(node)
        for edge in self._before[node]:
            total = total - self._held[edge]
        return total


def send(table: Table, held: Floats, forward: bool) -> Floats:
    """What can be taken at the far end: out(j) = min over i of ( e(i, j) + held(i) )."""
    near, far = (table.rows, table.cols) if forward else (table.cols, table.rows)
    if near is not None:
        held = near.lowest(held)
    if forward:
        taken = np.minimum.reduce(table.matrix + held[:, None], axis=0)
    else:
        taken = np.minimum.reduce(table.matrix + held, axis=1)
    return taken if far is None else taken[far.labels]


def _zeros(instance: Instance) -> list[Floats]:
    """Nothing held by any edge from its v."""
    return [np.zeros(len(instance.costs[v])) for _, v in instance.ends]


def _surely(instance: Instance) -> list[Floats]:
    """What each edge costs at least, by configuration of u."""
    known: dict[int, Floats] = {}
    for table in instance.tables:
        if id(table) not in known:
            lowest = table.matrix.min(1)
            known[id(table)] = lowest if table.rows is None else lowest[table.rows.labels]
    return [known[id(table)] for table in instance.tables]


def _cut(instance: Instance, vectors: Sequence[Floats], at_v: bool) -> list[Floats]:
    """Vectors over the original configurations of the edges' ends u or v, at those that remain."""
    kept = [instance.kept[v if at_v else u] for u, v in instance.ends]
    return [vector if left is None else vector[left] for vector, left in zip(vectors, kept, strict=True)]
