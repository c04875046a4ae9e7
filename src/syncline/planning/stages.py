"""Which cut points make the stages: those with which the slowest stage takes least time.

The ops between two neighbouring cut points form a segment that no cut can divide. With t(s) the seconds of
segment s and h(p) what a stage that ends at point p takes besides (a head of its own, say), the stages are
the partition of the segments into K runs that minimises

    max over stages k of   sum of t(s) over the segments s of k  +  h(end of k),

found exactly by dynamic programming over (stages so far, last point). Of equally good ones the partition
that sends fewest bytes is taken. Every stage has a parameter to train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from syncline.cluster.topology import Device
from syncline.errors import StrategyError
from syncline.graph.cutting import CutPoint, Cutting
from syncline.graph.opgraph import Op, OpGraph, TensorKind
from syncline.planning.op_costs import LAUNCH_S

BACKWARD_TO_FORWARD_BYTES = 2
"""Backward reads what forward did and the gradient, and writes a gradient for each input."""


@dataclass(frozen=True, slots=True)
class OpTime:
    """Seconds of one op on one device."""

    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def op_time(graph: OpGraph, op: Op, device: Device, share: float = 1.0) -> OpTime:
    """A roofline: the longer of arithmetic and memory traffic, and the launch of a kernel each way.

    `share` is the part of the graph's rows that the op runs on; parameters are read whole.
    """
    if op.is_view:
        return OpTime()
    width = max(graph.tensors[tensor].dtype.itemsize for tensor in op.outputs)
    rate, bandwidth = device.matmul_flops_per_s(width) / share, device.memory_bytes_per_s
    read = [graph.tensors[tensor] for tensor in dict.fromkeys(op.inputs)]
    weights = sum(tensor.bytes for tensor in read if tensor.kind is TensorKind.PARAMETER)
    moved = weights + share * (op.bytes_read + op.bytes_written - weights)
    forward = max(op.forward_flops / rate, moved / bandwidth) + LAUNCH_S
    if not any(graph.tensors[tensor].requires_grad for tensor in op.outputs):
        return OpTime(forward)
    moved *= BACKWARD_TO_FORWARD_BYTES
    return OpTime(forward, max(op.backward_flops / rate, moved / bandwidth) + LAUNCH_S)


def candidates(cutting: Cutting) -> tuple[CutPoint, ...]:
    """The points that leave a parameter to train on either side."""
    return tuple(point for point in cutting.points if point.after < cutting.logits.after)


def segment_times(cutting: Cutting, points: Sequence[CutPoint], device: Device) -> list[float]:
    """Estimated seconds of the segments between neighbouring points, from the batch to the loss."""
    bounds = [-1, *(point.after for point in points), len(cutting.graph.ops) - 1]
    graph = cutting.graph
    return [
        sum(op_time(graph, op, device).total_s for op in graph.ops[first + 1 : last + 1])
        for first, last in pairwise(bounds)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a choice of cut points comes to."""

    points: tuple[CutPoint, ...]
    stage_s: tuple[float, ...]
    """Of each stage, with what it takes besides."""

    @property
    def slowest_s(self) -> float:
        """The time of the slowest stage."""
        return max(self.stage_s)


def balance(
    cutting: Cutting,
    stages: int,
    times: Sequence[float],
    extra_s: Callable[[CutPoint], float] = lambda point: 0.0,
) -> Balance:
    """The cut points that make this many stages, the slowest as fast as can be.

    Args:
        cutting: The graph and its cut points.
        stages: How many.
        times: Seconds of the segments between the candidates.
        extra_s: What a stage that ends at a point takes besides its ops.

    Raises:
        StrategyError: There are not enough cut points; names the longest stretch without one.
    """
    points = candidates(cutting)
    _check_enough(cutting, points, stages)
    ends = [*points, None]
    extra = [0.0 if end is None else extra_s(end) for end in ends]
    sent = [0 if end is None else cutting.graph.tensors[end.tensor].bytes for end in ends]
    sums = [0.0]
    for seconds in times:
        sums.append(sums[-1] + seconds)
    trained = _parameters_before(cutting, points)
    worst = (math.inf, math.inf)
    # best[j]: the slowest stage and the bytes sent when segments 0..j-1 make the stages so far.
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [worst] * len(times)
    previous: list[list[int]] = []
    for _ in range(stages):
        now, source = [worst] * len(best), [-1] * len(best)
        for j in range(1, len(best)):
            for i in range(j):
                if best[i] is worst or trained[j] == trained[i]:
                    continue
                stage_s = sums[j] - sums[i] + extra[j - 1]
                found = (max(best[i][0], stage_s), best[i][1] + sent[j - 1])
                if found < now[j]:
                    now[j], source[j] = found, i
        best = now
        previous.append(source)
    chosen = _trace(previous)
    picked = tuple(points[j - 1] for j in chosen[1:-1])
    stage_s = tuple(sums[j] - sums[i] + extra[j - 1] for i, j in pairwise(chosen))
    return Balance(points=picked, stage_s=stage_s)


def named_points(cutting: Cutting, names: Sequence[str]) -> tuple[CutPoint, ...]:
    """The cut points that a user names: each by what crosses, or by the module after which to cut.

    Raises:
        StrategyError: A name means nothing, or more than one activation crosses there; says which.
    """
    known = candidates(cutting)
    chosen = [_named(cutting, known, name) for name in names]
    ordered = sorted(set(chosen), key=lambda point: point.after)
    if list(chosen) != ordered:
        raise StrategyError(
            f"The cut points {', '.join(names)} are not in the order of the model, or one stands twice.\n"
            f"In order they are {', '.join(point.name for point in ordered)}."
        )
    return tuple(chosen)


def _named(cutting: Cutting, known: Sequence[CutPoint], name: str) -> CutPoint:
    for point in known:
        if point.name == name:
            return point
    inside = [op for op in cutting.graph.ops if op.module == name or op.module.startswith(f"{name}.")]
    if not inside:
        modules = dict.fromkeys(point.name.rpartition("/")[0] or point.name for point in known)
        raise StrategyError(
            f"There is no module '{name}' to cut after.\nA cut is possible after: {', '.join(modules)}."
        )
    last = inside[-1].id
    for point in known:
        if point.after == last:
            return point
    crossing = [cutting.graph.tensors[tensor].name for tensor in cutting.crossing(last)]
    raise StrategyError(
        f"The model cannot be cut after '{name}': {len(crossing)} activations cross there "
        f"({', '.join(crossing) or 'none, for the loss follows'}), and one stage can hand over only one.\n"
        f"A cut is possible after: {', '.join(point.name for point in known)}."
    )


def _check_enough(cutting: Cutting, points: Sequence[CutPoint], stages: int) -> None:
    trained = _parameters_before(cutting, points)
    most = len(set(trained)) - 1
    if stages <= most:
        return
    where = ", ".join(point.name for point in points) or "nowhere"
    raise StrategyError(
        f"The model can be cut into at most {most} stages that have something to train, not into {stages}: a "
        f"cut is possible only where a single activation crosses, which is after: {where}.\n"
        f"{_longest_stretch(cutting, points)}\nUse fewer stages: the other ranks train in data parallel."
    )


def _longest_stretch(cutting: Cutting, points: Sequence[CutPoint]) -> str:
    """Where most ops in a row allow no cut, and what crosses in the middle of them."""
    ops = cutting.graph.ops
    bounds = [-1, *(point.after for point in points), len(ops) - 1]
    first, last = max(pairwise(bounds), key=lambda pair: pair[1] - pair[0])
    middle = (first + 1 + last) // 2
    names = [cutting.graph.tensors[tensor].name for tensor in cutting.crossing(middle)]
    return (
        f"The longest stretch without a cut goes from {ops[first + 1].name} to {ops[last].name}; halfway, "
        f"after {ops[middle].name}, {len(names)} activations cross ({', '.join(names[:4])}"
        f"{', ...' if len(names) > 4 else ''})."
    )


def _parameters_before(cutting: Cutting, points: Sequence[CutPoint]) -> list[int]:
    """How many uses of trained parameters there are before each end of a segment."""
    graph = cutting.graph
    uses = sorted(
        op
        for tensor in graph.of_kind(TensorKind.PARAMETER)
        if tensor.requires_grad
        for op in graph.consumers[tensor.id]
    )
    bounds = [-1, *(point.after for point in points), len(graph.ops) - 1]
    return [sum(op <= bound for op in uses) for bound in bounds]


def _trace(previous: Sequence[Sequence[int]]) -> list[int]:
    """The ends of the stages, from 0 to the number of segments."""
    ends = [len(previous[0]) - 1]
    for source in reversed(previous):
        ends.append(source[ends[-1]])
    return ends[::-1]


def group(times: Sequence[float], groups: int) -> list[int]:
    """Into which of so many runs of neighbours each item goes, the slowest run as fast as can be."""
    best: list[tuple[float, list[int]]] = [
        (0.0, []) if not count else (math.inf, []) for count in range(len(times) + 1)
    ]
    for number in range(groups):
        now: list[tuple[float, list[int]]] = [(math.inf, [])] * (len(times) + 1)
        for end in range(number + 1, len(times) + 1):
            for start in range(number, end):
                slowest = max(best[start][0], sum(times[start:end]))
                if slowest < now[end][0]:
                    now[end] = slowest, best[start][1] + [number] * (end - start)
        best = now
    return best[-1][1]
