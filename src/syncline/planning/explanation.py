"""Why the plan is as it is: the costliest ops, what limits the step, and what would make another way win."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from syncline.cluster.topology import Cluster
from syncline.graph.opgraph import OpGraph
from syncline.planning.pins import Pin, pin_masks
from syncline.planning.planner import Planned
from syncline.planning.reasons import OpReason, find_reasons
from syncline.planning.repricing import Repricer, with_bandwidth, with_latency
from syncline.planning.search import Limits

FACTORS = (1 / 64, 1 / 8, 1 / 2, 2, 8, 64)
"""Of a level's bandwidth, at which alternatives are priced again; between them the crossing is bisected."""
BATCH_FACTORS = (0.25, 4.0)
_BISECTIONS = 6
_TIE = 1e-3


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
        ops=find_reasons(planned, Limits(masks=pin_masks(planned.search.tables, pins))),
        resources=_resources(repricer),
        verdicts=_verdicts(planned, repricer, recapture),
    )


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
            changes.append(f"with {_gigabytes(needed)} a device {wins}")
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


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.0f} GB" if nbytes >= 1e11 else f"{nbytes / 1e9:.3g} GB"
