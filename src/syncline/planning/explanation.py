"""Why the plan is as it is: the costliest ops, what limits the step, and what would make another way win."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline.cluster.topology import Cluster
from syncline.graph.opgraph import OpGraph
from syncline.planning.breakdown import CAUSES, node_costs
from syncline.planning.layers import describe_split
from syncline.planning.pins import Pin, pin_masks
from syncline.planning.planner import Planned, name_split
from syncline.planning.repricing import Repricer, with_bandwidth, with_latency
from syncline.planning.roles import batch_dims
from syncline.planning.search import Candidate, Limits

OPS_SHOWN = 5
FACTORS = (1 / 64, 1 / 8, 1 / 2, 2, 8, 64)
"""Of a level's bandwidth, at which alternatives are priced again; between them the crossing is bisected."""
BATCH_FACTORS = (0.25, 4.0)
_BISECTIONS = 6
_TIE = 1e-3


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What the step would gain if one resource were twice as fast."""

    name: str
    step_s: float
    gain: float
    """The share of the step that would be saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What would have to change for an alternative to be faster than the plan."""

    name: str
    slower: float
    """Its step time over the plan's."""
    fits: bool
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that `--explain` says."""

    step_s: float
    ops: tuple[OpReason, ...]
    resources: tuple[Resource, ...]
    """The one that limits the step most first."""
    verdicts: tuple[Verdict, ...]


def explain(
    planned: Planned, *, pins: Sequence[Pin] = (), recapture: Callable[[int], OpGraph] | None = None
) -> Explanation:
    """Explain a plan.

    Args:
        planned: The plan and what it was chosen from.
        pins: Those that it was made with.
        recapture: Captures the model at another batch; None if that would take too long.
    """
    repricer = Repricer(planned)
    return Explanation(
        step_s=planned.plan.prediction.step_s,
        ops=_reasons(planned, Limits(masks=pin_masks(planned.search.tables, pins))),
        resources=_resources(repricer),
        verdicts=_verdicts(planned, repricer, recapture),
    )


def _reasons(planned: Planned, limits: Limits) -> tuple[OpReason, ...]:
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


def _resources(repricer: Repricer) -> tuple[Resource, ...]:
    cluster = repricer.cluster
    device = cluster.device
    faster: Mapping[str, Cluster] = {
        "FLOP/s of the devices": dataclasses.replace(
            cluster,
            device=dataclasses.replace(
                device,
                flops_per_s=device.flops_per_s * 2,
                flops_per_s_bf16=device.flops_per_s_bf16 * 2 if device.flops_per_s_bf16 else None,
            ),
        ),
        "memory bandwidth of the devices": dataclasses.replace(
            cluster,
            device=dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s * 2),
        ),
        **{
            f"bandwidth of the level '{level.name}'": with_bandwidth(cluster, level.name, 2)
            for level in cluster.levels
            if level.size > 1
        },
        **({"latency of the links": with_latency(cluster, 0.5)} if cluster.world_size > 1 else {}),
    }
    now = repricer.steps_s(cluster)[0]
    found = []
    for name, other in faster.items():
        step_s = repricer.steps_s(other)[0]
        found.append(Resource(name=name, step_s=step_s, gain=1 - step_s / now))
    return tuple(sorted(found, key=lambda one: -one.gain))


def _verdicts(
    planned: Planned, repricer: Repricer, recapture: Callable[[int], OpGraph] | None
) -> tuple[Verdict, ...]:
    steps, limit = repricer.steps_s(repricer.cluster), planned.plan.memory_limit_bytes
    graphs = _at_batches(planned, recapture)
    verdicts = []
    for place, (name, one) in enumerate(planned.alternatives, start=1):
        ratio, needed = steps[place] / steps[0], one.prediction.memory.total
        changes: list[str] = []
        if needed > limit:
            wins = "it would win" if ratio < 1 else "it would fit, and still be slower"
            changes.append(f"with {needed / 1e9:.3g} GB a device {wins}")
        if abs(ratio - 1) <= _TIE:
            changes.append("it takes as long as the plan")
        elif ratio > 1:
            changes += _by_bandwidth(repricer, place) + _by_batch(repricer, place, graphs)
            changes = changes or [_NOTHING.format(least=1 / FACTORS[-1], most=FACTORS[-1])]
        verdicts.append(Verdict(name=name, slower=ratio, fits=needed <= limit, changes=tuple(changes)))
    return tuple(verdicts)


_NOTHING = "no change of a level's bandwidth between {least:.3g} and {most:g} times makes it win"


def _by_bandwidth(repricer: Repricer, place: int) -> list[str]:
    found = []
    for level in repricer.cluster.levels:
        if level.size == 1:
            continue
        for tried in (
            sorted(f for f in FACTORS if f > 1),
            sorted((f for f in FACTORS if f < 1), reverse=True),
        ):
            factor = _crossing(lambda f, level=level: _lead(repricer, place, level.name, f), tried)
            if factor is not None:
                rate = level.bytes_per_s * factor / 1e9
                more = f"{factor:.2g} times" if factor > 1 else f"1/{1 / factor:.2g} of"
                found.append(f"with {more} the bandwidth of '{level.name}' ({rate:.3g} GB/s a device)")
    return found


def _lead(repricer: Repricer, place: int, level: str, factor: float) -> float:
    """How much faster than the plan an alternative is there, in seconds."""
    steps = repricer.steps_s(with_bandwidth(repricer.cluster, level, factor))
    return steps[0] * (1 - _TIE) - steps[place]


def _crossing(lead: Callable[[float], float], factors: Sequence[float]) -> float | None:
    """The factor nearest to 1 from which an alternative leads, of factors away from 1."""
    before = 1.0
    for factor in factors:
        if lead(factor) > 0:
            for _ in range(_BISECTIONS):
                middle = math.sqrt(before * factor)
                before, factor = (before, middle) if lead(middle) > 0 else (middle, factor)
            return factor
        before = factor
    return None


def _at_batches(planned: Planned, recapture: Callable[[int], OpGraph] | None) -> list[tuple[int, OpGraph]]:
    if recapture is None:
        return []
    batches = {int(planned.plan.workload.batch * factor) for factor in BATCH_FACTORS}
    usable = sorted(batch for batch in batches if batch >= 1 and batch != planned.plan.workload.batch)
    return [(batch, recapture(batch)) for batch in usable]


def _by_batch(repricer: Repricer, place: int, graphs: Sequence[tuple[int, OpGraph]]) -> list[str]:
    found = []
    for batch, graph in graphs:
        steps = repricer.steps_s(repricer.cluster, graph)
        if math.isinf(steps[place]):
            continue
        if math.isinf(steps[0]):
            found.append(f"at batch {batch}, which the plan cannot be split for")
        elif steps[place] < steps[0] * (1 - _TIE):
            found.append(f"at batch {batch}")
    return found
