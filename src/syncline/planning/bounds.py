"""Crosses out configurations that cannot be in a best choice, by bounds from both sides.

The problem is  F* = min over x of  sum_v c_v(x_v) + sum_(u,v) e_uv(x_u, x_v).

Lower bound. Any vectors p_uv, p_vu leave F unchanged when added to the nodes and taken from the edges:

    c'_v = c_v + sum_u p_uv            e'_uv(i, j) = e_uv(i, j) - p_vu(i) - p_uv(j)

and then  L = sum_v min c'_v + sum_uv min e'_uv <= F*.  A pass visits the nodes in sweep order (sequential
reweighted message passing; Kolmogorov, PAMI 2006 and 2015): a node gathers all that its edges hold into
its sum h_v, and hands each edge that leads on the share g_v h_v, where g_v = 1 / max(edges in, edges out);
the next node on that edge takes p = min over i of (e + g_v h_v - p back) from it. L never falls, passes
alternate in direction, and on a tree L becomes F*.

Upper bound. On the way each node picks the configuration that is best for the nodes already visited and
for what the others promise; that is a whole choice, with value U.

Pruning. While v holds h_v, every choice with x_v = i costs at least L + h_v(i) - min h_v. Where that
exceeds U, no best choice uses i. Ties are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncline.planning.instance import Instance
from syncline.planning.layouts import Floats, Ints, Table

TOLERANCE = 1e-11
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
        self._forward = start is None or start.forward
        self._held: list[Floats] = []
        self._handed = [0.0] * len(instance.tables)
        self._taken: tuple[list[Floats], list[Floats]] = ([], [])  # at u of each edge, at v of each edge
        self._resume(start or _cold_start(instance))
        self._retained = [float(self._at_rest(node).min()) for node in range(len(instance.costs))]
        self.lower = sum(self._retained)

    def cost(self) -> int:
        """The cells that one more pass would visit."""
        return sum(table.matrix.size for table in self.instance.tables)

    def offer(self, choice: Sequence[int]) -> None:
        """Lowers U to the value of this choice of remaining configurations, if it is lower."""
        terms = self.instance.terms(choice)
        value = math.fsum(terms)
        if value < min(self.upper, self._ceiling):
            self.upper = value
            self._margin = TOLERANCE * math.fsum(map(abs, terms))

    def run_pass(self) -> None:
        """Visits all nodes once, in the direction opposite to that of the last pass."""
        chosen = [0] * len(self._sweep)
        for node in self._sweep if self._forward else reversed(self._sweep):
            gathered, promised = self._gather(node)
            lowest = float(gathered.min())
            if self.upper < np.inf:
                survivors = self._survivors(gathered, lowest)
                if survivors is not None:
                    self._restrict(node, survivors)
                    gathered, promised = gathered[survivors], promised[survivors]
            if self._guessing:
                chosen[node] = self._guess(node, promised, chosen)
            self._hand_on(node, gathered, lowest)
        if self._guessing:
            self.offer(chosen)
        self._guessing = True
        self._forward = not self._forward
        self.passes += 1
        self._remember()

    def _gather(self, node: int) -> tuple[Floats, Floats]:
        """h of the node, and the part of it that comes from nodes not yet visited."""
        before, after = self._sides(node)
        near, far = self._taken if self._forward else self._taken[::-1]
        promised = self.instance.costs[node]
        for edge in after:
            promised = promised + near[edge]
        gathered, given = promised, self._retained[node]
        for edge in before:
            gathered = gathered + far[edge]
            given += self._handed[edge]
        self.lower += float(gathered.min()) - given
        return gathered, promised

    def _survivors(self, gathered: Floats, lowest: float) -> Ints | None:
        limit = lowest + max(self.upper - self.lower, 0.0) + self._margin
        alive = gathered <= limit
        if np.count_nonzero(alive) > WORTHWHILE * len(alive):
            return None
        return np.flatnonzero(alive)

    def _restrict(self, node: int, survivors: Ints) -> None:
        self.instance.restrict(node, survivors)
        for edge in self.instance.outgoing[node]:
            self._taken[0][edge] = self._taken[0][edge][survivors]
        for edge in self.instance.incoming[node]:
            self._taken[1][edge] = self._taken[1][edge][survivors]

    def _guess(self, node: int, promised: Floats, chosen: Sequence[int]) -> int:
        for edge in self._sides(node)[0]:
            u, v = self.instance.ends[edge]
            table = self.instance.tables[edge]
            promised = promised + (table.row(chosen[u]) if self._forward else table.col(chosen[v]))
        return int(promised.argmin())

    def _hand_on(self, node: int, gathered: Floats, lowest: float) -> None:
        before, after = self._sides(node)
        near, far = self._taken if self._forward else self._taken[::-1]
        share = 1.0 / max(len(before), len(after), 1)
        self._retained[node] = (1.0 - len(after) * share) * lowest
        for edge in before:
            self._handed[edge] = 0.0
        for edge in after:
            self._handed[edge] = share * lowest
            held = self._held[edge] = share * gathered - near[edge]
            far[edge] = send(self.instance.tables[edge], held, self._forward)

    def _sides(self, node: int) -> tuple[list[int], list[int]]:
        """The edges to nodes visited before and after this one."""
        sides = self.instance.incoming[node], self.instance.outgoing[node]
        return sides if self._forward else sides[::-1]

    def _at_rest(self, node: int) -> Floats:
        """The node's part of L between two passes."""
        before, after = self._sides(node)
        total = self.instance.costs[node]
        for edge in after:
            total = total + self._taken[0 if self._forward else 1][edge]
        for edge in before:
            total = total - self._held[edge]
        return total

    def _resume(self, start: WarmStart) -> None:
        for (u, v), held, taken in zip(self.instance.ends, start.held, start.taken, strict=True):
            near, far = (u, v) if self._forward else (v, u)
            near_kept, far_kept = self.instance.kept[near], self.instance.kept[far]
            self._held.append(held if far_kept is None else held[far_kept])
            taken = taken if near_kept is None else taken[near_kept]
            self._taken[0].append(taken)
            self._taken[1].append(taken)  # the far end's is written before it is read

    def _remember(self) -> None:
        if all(kept is None for kept in self.instance.kept):
            near = self._taken[0 if self._forward else 1]
            self.remembered = WarmStart(self._forward, tuple(self._held), tuple(near))


def send(table: Table, held: Floats, forward: bool) -> Floats:
    """What can be taken at the far end: out(j) = min over i of ( e(i, j) + held(i) )."""
    near, far = (table.rows, table.cols) if forward else (table.cols, table.rows)
    if near is not None:
        held = near.lowest(held)
    taken = (table.matrix + held[:, None]).min(0) if forward else (table.matrix + held).min(1)
    return taken if far is None else taken[far.labels]


def _cold_start(instance: Instance) -> WarmStart:
    """Edges that hold nothing; all that they surely cost is taken at u."""
    known: dict[int, Floats] = {}
    held, taken = [], []
    for (_, v), table in zip(instance.ends, instance.tables, strict=True):
        if id(table) not in known:
            lowest = table.matrix.min(1)
            known[id(table)] = lowest if table.rows is None else lowest[table.rows.labels]
        taken.append(known[id(table)])
        held.append(np.zeros(len(instance.costs[v])))
    return WarmStart(True, tuple(held), tuple(taken))
