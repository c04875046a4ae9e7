"""Why the costliest ops are split as they are: what the next best split would cost in all."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline.planning.breakdown import CAUSES, node_costs
from syncline.planning.describing import name_split
from syncline.planning.layers import describe_split
from syncline.planning.planner import Planned
from syncline.planning.roles import batch_dims
from syncline.planning.search import Candidate, Limits

OPS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class OpReason:
    """Why one of the costliest ops is split as it is."""

    name: str
    count: int
    """How many ops of the model are decided with it, itself included."""
    split: str
    seconds: float
    """Of a step, for all of them, with what they wait for on links."""
    causes: dict[str, float]
    next_split: str | None
    """The split of the best plan that splits this op otherwise; None if there is no other that fits."""
    next_step_s: float | None
    """The step time of that plan."""


def find_reasons(planned: Planned, limits: Limits) -> tuple[OpReason, ...]:
    """The costliest ops of a plan, the costliest first; `limits` are those that it was made with."""
    costs = node_costs(planned.search, planned.chosen)
    otherwise = _Otherwise(planned, limits)
    reasons: dict[tuple[str, str], OpReason] = {}
    for index in sorted(costs, key=lambda node: -costs[node].total_s):
        words = _Words(planned, index)
        chosen = planned.chosen.choice[index]
        # The first and the last of equal blocks say what those between them say.
        alike = (re.sub(r"\d+", "#", words.op.name), words.split(chosen))
        if alike in reasons:
            continue
        other = otherwise.best(index, words.different(chosen))
        reasons[alike] = OpReason(
            name=words.op.name,
            count=planned.search.tables.nodes[index].weight,
            split=words.split(chosen),
            seconds=costs[index].total_s,
            causes={cause: getattr(costs[index], cause) for cause in CAUSES},
            next_split=words.split(other.choice[index]) if other else None,
            next_step_s=other.prediction.step_s if other else None,
        )
        if len(reasons) == OPS_SHOWN:
            break
    return tuple(reasons.values())


class _Words:
    """The choices of one node as people read them."""

    def __init__(self, planned: Planned, index: int) -> None:
        node = planned.search.tables.nodes[index]
        if node.op is None or node.assignments is None:
            raise TypeError("only ops are split")
        self.op, self._rows = node.op, node.assignments
        self._planned = planned
        dim = batch_dims(planned.search.tables.graph).get(self.op.id)
        self._batch = self.op.space.dims[dim].name if dim is not None else None

    def split(self, choice: int) -> str:
        split = name_split(self.op.space.dims, self._rows[choice], self._planned.search.tables.axes)
        return describe_split(split, self._planned.plan, self._batch) or "whole on every device"

    def different(self, chosen: int) -> npt.NDArray[np.bool_]:
        """Which choices are not the same but for axes of one level that changed places."""
        own = self._parts(chosen)
        return np.array([self._parts(choice) != own for choice in range(len(self._rows))], dtype=bool)

    def _parts(self, choice: int) -> Counter[tuple[int, int, int]]:
        axes = self._planned.search.tables.axes.axes
        pairs = zip(self._rows[choice], axes, strict=True)
        return Counter((int(dim), axis.level, axis.size) for dim, axis in pairs)


class _Otherwise:
    """Finds the best plans that fit and split one op otherwise.

    Where memory binds, a byte has the price at which the plan itself comes out of the search.
    """

    def __init__(self, planned: Planned, limits: Limits) -> None:
        self._search, self._limits = planned.search, limits
        self._recompute = planned.chosen.recompute
        self._memory = planned.plan.memory_limit_bytes
        self._scale = planned.plan.prediction.step_s / planned.plan.prediction.memory.total
        self._price = 0.0 if self._fitting(limits, 0.0) else self._binding_price()

    def best(self, index: int, different: npt.NDArray[np.bool_]) -> Candidate | None:
        allowed = different & self._limits.masks.get(index, np.ones(len(different), dtype=bool))
        if not allowed.any():
            return None
        limits = dataclasses.replace(self._limits, masks={**self._limits.masks, index: allowed})
        for price in (self._price, *(max(self._price, self._scale) * 8**power for power in range(1, 5))):
            found = self._fitting(limits, price)
            if found is not None:
                return found
        return None

    def _fitting(self, limits: Limits, price: float) -> Candidate | None:
        found = self._search.solve(limits, price=price, recompute=self._recompute)
        return found if found is not None and found.prediction.memory.total <= self._memory else None

    def _binding_price(self) -> float:
        low, high = -10.0, 16.0
        while high - low > 1:
            middle = (low + high) / 2
            if self._fitting(self._limits, self._scale * 2**middle) is None:
                low = middle
            else:
                high = middle
        return self._scale * 2**high
