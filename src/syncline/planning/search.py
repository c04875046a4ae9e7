"""The search: the fastest plan that fits the memory of a device.

The objective is additive, so the elimination finds its exact minimum:

    F(x) = sum over ops of  compute + exchange + optimizer + b · (gradient reductions and weight gathering)
         + sum over edges of  redistribution, forward and backward

b is the share of parameter communication that backward cannot hide, one figure for the cluster and model,
taken from data parallelism: there, gradients reductions take G and backward compute takes B seconds, and
b = max(b_min, (G − B) / G).

Memory M(x) is additive too. For a limit, F + λ·M is minimised for rising prices λ of a byte, with and
without recomputing the blocks' activations. Every answer has the least F among all plans with at most its
memory, and answers for rising λ are slower and smaller; so the first that fits is the best of them, and a
tighter limit can never give a faster plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from syncline.planning.elimination import LayoutCosts, Solver
from syncline.planning.elimination.problem import EdgeCosts
from syncline.planning.parameter_costs import KEEPINGS, Keeping
from syncline.planning.prediction import Prediction
from syncline.planning.tables import Node, Tables
from syncline.planning.totals import Totals

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Keepings = npt.NDArray[np.int64]
"""For each choice of a node, the best way to keep its parameters, as an index into `KEEPINGS`."""

LEAST_EXPOSED = 0.05
"""Of parameter communication: the last gradients are ready only when backward ends."""
PRICES = 2.0 ** np.arange(-8, 16, 0.125)
"""Of a byte, in (seconds / bytes) of the fastest plan: those among which the search looks for the lowest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a solve may choose from."""

    masks: Mapping[int, Mask]
    """For some nodes, which of their choices are allowed."""
    keepings: tuple[Keeping, ...] = KEEPINGS

    @classmethod
    def none(cls) -> Limits:
        """Everything may be chosen."""
        return cls(masks={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A complete choice, and what it costs."""

    choice: tuple[int, ...]
    """For each node of the tables."""
    keeping: tuple[Keeping, ...]
    """For each node; what has no parameters is `replicated`."""
    recompute: bool
    prediction: Prediction
    objective: float
    """F as the solver claims it, with memory priced in."""


class Search:
    """All solves of one graph on one cluster."""

    def __init__(self, tables: Tables, *, exposed_share: float = 1.0) -> None:
        """`exposed_share` is b of the objective."""
        self.tables = tables
        self.exposed_share = exposed_share

    @cached_property
    def has_blocks(self) -> bool:
        """Whether there is something to recompute."""
        return any(node.block is not None for node in self.tables.nodes)

    def solve(self, limits: Limits, *, price: float = 0.0, recompute: bool = False) -> Candidate | None:
        """The choice with the least F + price · M; None when the limits allow none."""
        costs, keepings = self._costs(limits, price=price, recompute=recompute)
        solution = (self._recomputing if recompute else self._plain).solve(costs)
        if not np.isfinite(solution.value):
            return None
        return self._candidate(solution.choice, keepings, solution.value, recompute=recompute)

    def node_costs(self, limits: Limits, *, price: float = 0.0, recompute: bool = False) -> list[Floats]:
        """The node costs of the objective."""
        return self._costs(limits, price=price, recompute=recompute)[0]

    def complete(self, choice: tuple[int, ...], limits: Limits | None = None) -> Candidate:
        """A given choice with the best way to keep each parameter."""
        _, keepings = self._costs(limits or Limits.none(), price=0.0, recompute=False)
        found = self._candidate(choice, keepings, np.nan, recompute=False)
        return dataclasses.replace(found, objective=found.prediction.step_s)

    def marginals(self, node: int) -> Floats:
        """For each choice of a node, the least step time of all plans that make it."""
        return self._plain.marginals(self.node_costs(Limits.none()), node)

    def fastest_within(
        self, memory_bytes: float, limits: Limits
    ) -> tuple[Candidate | None, Candidate | None]:
        """The fastest plan found that fits, and the smallest plan found if none does."""
        first = self.solve(limits)
        # Recomputing takes time: where the fastest plan of all fits, there is nothing to gain by it.
        if first is None or _bytes(first) <= memory_bytes:
            return first, first
        found = [self._first_fitting(memory_bytes, limits, first)]
        if self.has_blocks:
            again = self.solve(limits, recompute=True)
            found += [self._first_fitting(memory_bytes, limits, again)] if again else []
        fastest = min((best for best, _ in found if best), key=_step_s, default=None)
        return fastest, min((least for _, least in found), key=_bytes)

    def _first_fitting(
        self, memory_bytes: float, limits: Limits, first: Candidate
    ) -> tuple[Candidate | None, Candidate]:
        """The answer for the lowest price that fits, and the smallest answer; `first` is that for no price.

        Memory falls as the price rises, so the price is found by bisection.
        """
        if _bytes(first) <= memory_bytes:
            return first, first
        recompute = first.recompute
        scale = first.prediction.step_s / _bytes(first)
        prices = scale * PRICES
        last = self.solve(limits, price=prices[-1], recompute=recompute)
        if last is None or _bytes(last) > memory_bytes:
            return None, last or first
        low, high, best = -1, len(prices) - 1, last
        while high - low > 1:
            middle = (low + high) // 2
            found = self.solve(limits, price=prices[middle], recompute=recompute)
            if found is not None and _bytes(found) <= memory_bytes:
                high, best = middle, found
            else:
                low = middle
        return best, last

    def predict(
        self, choice: tuple[int, ...], keeping: tuple[Keeping, ...], *, recompute: bool
    ) -> Prediction:
        """Time and memory of a complete choice."""
        calibration = self.tables.calibration
        totals = Totals(machine=calibration.machine if calibration is not None else None)
        for node, chosen, kept in zip(self.tables.nodes, choice, keeping, strict=True):
            totals.add_node(node, chosen, KEEPINGS.index(kept), recompute=recompute)
        for edge in self.tables.edges:
            row, col = edge.rows[choice[edge.source]], edge.cols[choice[edge.target]]
            again = recompute and edge.inside_block
            totals.redistribute_s += edge.total_s[row, col] + (edge.forward_s[row, col] if again else 0.0)
        return totals.prediction(self.exposed_share)

    def _costs(
        self, limits: Limits, *, price: float, recompute: bool
    ) -> tuple[list[Floats], list[Keepings | None]]:
        columns = np.array([KEEPINGS.index(keeping) for keeping in limits.keepings])
        costs: list[Floats] = []
        keepings: list[Keepings | None] = []
        for index, node in enumerate(self.tables.nodes):
            own, best = self._node_costs(node, columns, price, recompute=recompute)
            mask = limits.masks.get(index)
            costs.append(own if mask is None else np.where(mask, own, np.inf))
            keepings.append(best)
        return costs, keepings

    def _candidate(
        self,
        choice: tuple[int, ...],
        keepings: Sequence[Keepings | None],
        objective: float,
        *,
        recompute: bool,
    ) -> Candidate:
        kept = tuple(
            KEEPINGS[best[chosen]] if best is not None else Keeping.REPLICATED
            for best, chosen in zip(keepings, choice, strict=True)
        )
        return Candidate(
            choice=choice,
            keeping=kept,
            recompute=recompute,
            prediction=self.predict(choice, kept, recompute=recompute),
            objective=objective,
        )

    def _node_costs(
        self, node: Node, columns: Keepings, price: float, *, recompute: bool
    ) -> tuple[Floats, Keepings | None]:
        total = np.zeros(node.count)
        again = recompute and node.block is not None
        if node.costs is not None:
            own = node.costs
            total += own.forward_s + own.backward_s + own.forward_exchange_s + own.backward_exchange_s
            if again:
                total += own.forward_s + own.forward_exchange_s
        if price:
            saved = node.entering_bytes if again else node.saved_bytes
            total += price * saved if saved is not None else 0.0
        if node.parameters is None:
            return node.weight * total, None
        own = node.parameters
        by_keeping = (
            self.exposed_share * (own.forward_gather_s + own.backward_reduce_s)
            + own.waited_s
            + own.optimizer_s
            + price * own.kept_bytes
        )[:, columns]
        best = by_keeping.argmin(axis=1)
        return node.weight * (total + by_keeping[np.arange(node.count), best]), columns[best]

    @cached_property
    def _plain(self) -> Solver:
        return self._solver(recompute=False)

    @cached_property
    def _recomputing(self) -> Solver:
        return self._solver(recompute=True)

    def _solver(self, *, recompute: bool) -> Solver:
        edges: dict[tuple[int, int], LayoutCosts] = {}
        sums: dict[tuple[int, int, bool], Floats] = {}
        for edge in self.tables.edges:
            again = recompute and edge.inside_block
            key = (id(edge.total_s), id(edge.forward_s), again)
            if key not in sums:
                sums[key] = edge.total_s + edge.forward_s if again else edge.total_s
            ends = (edge.source, edge.target)
            costs = LayoutCosts(matrix=sums[key], rows=edge.rows, cols=edge.cols)
            edges[ends] = costs if ends not in edges else _merge(edges[ends], costs)
        checked: EdgeCosts = edges
        return Solver([node.count for node in self.tables.nodes], checked)


def _step_s(candidate: Candidate) -> float:
    return candidate.prediction.step_s


def _bytes(candidate: Candidate) -> float:
    return candidate.prediction.memory.total


def _merge(one: LayoutCosts, other: LayoutCosts) -> LayoutCosts:
    """Two tensors between the same two ops: their costs add up, choice by choice."""
    matrix = _by_choice(one) + _by_choice(other)
    return LayoutCosts(matrix=matrix, rows=np.arange(matrix.shape[0]), cols=np.arange(matrix.shape[1]))


def _by_choice(costs: LayoutCosts) -> Floats:
    return np.asarray(costs.matrix)[np.ix_(np.asarray(costs.rows), np.asarray(costs.cols))]
