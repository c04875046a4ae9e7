"""What training in stages is predicted to cost: `pipeline` with each schedule, and `local`.

K stages, each on D devices, work on a global batch in m micro-batches a step. Stage k takes f_k forward and
b_k backward for one micro-batch, its head a_k (of `local`), its optimizer u_k; c is one activation over the
link to the next stage, of which a share e is not hidden behind computing (1 - `overlap` of that level: the
cores that compute carry messages on one machine). The slowest stage is marked *.

    gpipe, 1f1b    sum_k (f_k + b_k) + (m - 1) (f* + b*) + 2 (K - 1 + (m - 1) e) c + u*
    interleaved    m (f* + b*) + (K - 1) (f* + b*) / v + 2 (K v - 1 + (m - 1) v e) c + u*
    zero-bubble    m (f* + b*) + (K - 1) (f* + b*) / 3 + 2 (K - 1 + (m - 1) e) c + u*
    local          max_k max(m (f_k + b_k + a_k + e c) + u_k, m c)

With v stages on each device. The part above m (f* + b*) is the bubble, but for messages. `local` has none in
the long run: (K - 1)(f + c) once a run. With D > 1 gradients are averaged after the last backward. With A_k
what one micro-batch saves in stage k, X what crosses, q the length of a queue:

    activations    gpipe m A_k;  1f1b, zero-bubble min(m, K - k) A_k;  interleaved up to (K (v + 1) / v) A;
                   local A_k + A_head + 2 q X
    sent a step    pipeline 2 m X;  local m X, and tied weights where later stages use them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from syncline.cluster.collectives import collective_s
from syncline.cluster.topology import Cluster
from syncline.errors import StrategyError
from syncline.graph.cutting import CutPoint, Cutting, StagePart
from syncline.planning.plan import Alternative
from syncline.planning.prediction import Memory, Prediction, Times
from syncline.planning.saving import find_charges
from syncline.planning.stages import balance, candidates, op_time, segment_times

HeadFlops = Callable[[CutPoint | None, CutPoint], float]
"""FLOPs of the head of a block between two points, forward, on the rows of the graph."""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
MICROBATCHES_TO_STAGES = (1, 2, 4, 8)
QUEUE = 2
INTERLEAVED_STAGES = 2
TRAINED_TO_FORWARD = 3
"""FLOPs of forward and backward of a trained layer, in forward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage for one micro-batch, on one device."""

    forward_s: float
    backward_s: float
    head_s: float
    saved_bytes: float
    parameter_bytes: float
    exit_bytes: float

    @property
    def busy_s(self) -> float:
        """Forward and backward, without the head."""
        return self.forward_s + self.backward_s


class StagedCosts:
    """Predicts trainings in stages of one graph, captured at the global batch, on one cluster."""

    def __init__(
        self, cutting: Cutting, cluster: Cluster, *, batch: int, state_factor: float, head_flops: HeadFlops
    ) -> None:
        self._cutting = cutting
        self._cluster = cluster
        self._batch = batch
        self._state_factor = state_factor
        self._head_flops = head_flops
        self._points = candidates(cutting)
        self._times = segment_times(cutting, self._points, cluster.device)
        self._saved = _saved_bytes(cutting)

    def alternatives(self, limit: float) -> list[Alternative]:
        """For each schedule and for `local`, the fastest number of stages and micro-batches that fits.

        When nothing fits, the one of least memory.
        """
        found = []
        for kind in (*SCHEDULES, "local"):
            ways = [(name, one) for name, one in self._ways(kind) if one.memory.total <= limit] or sorted(
                self._ways(kind), key=lambda way: way[1].memory.total
            )[:1]
            if ways:
                name, best = min(ways, key=lambda way: way[1].step_s)
                fits = best.memory.total <= limit
                found.append(Alternative(name=name, exact=kind != "local", prediction=best, fits=fits))
        return found

    def every_way(self) -> dict[str, Prediction]:
        """All that was weighed, by name."""
        return {name: one for kind in (*SCHEDULES, "local") for name, one in self._ways(kind)}

    def _ways(self, kind: str) -> Iterator[tuple[str, Prediction]]:
        world = self._cluster.world_size
        for depth in (size for size in range(2, world + 1) if world % size == 0):
            per_device = INTERLEAVED_STAGES if kind == "interleaved" else 1
            points = self._cut(depth * per_device, with_heads=kind == "local")
            if points is None:
                continue
            for parts in self._parts(kind, depth):
                stages = self._stages(points, depth, parts, with_heads=kind == "local")
                if kind == "local":
                    name = f"local:stages={depth}" + (f" (accumulate {parts})" if parts > 1 else "")
                    yield name, self._local(stages, depth, parts)
                else:
                    name = f"pipeline:schedule={kind},stages={depth},microbatches={parts}"
                    yield name, self._pipeline(kind, stages, depth, parts)

    def _parts(self, kind: str, depth: int) -> list[int]:
        rows = self._batch // (self._cluster.world_size // depth)
        found = [many * depth for many in MICROBATCHES_TO_STAGES if rows % (many * depth) == 0]
        return [1, *found] if kind == "local" else found

    def _cut(self, stages: int, *, with_heads: bool) -> Sequence[CutPoint] | None:
        rate = self._cluster.device.flops_per_s

        def head_s(point: CutPoint) -> float:
            return TRAINED_TO_FORWARD * self._head_flops(None, point) / rate if with_heads else 0.0

        try:
            return balance(self._cutting, stages, self._times, head_s).points
        except StrategyError:
            return None

    def _stages(
        self, points: Sequence[CutPoint], depth: int, parts: int, *, with_heads: bool
    ) -> list[StageCost]:
        share = depth / (self._cluster.world_size * parts)
        ends = [*points, None]
        starts = [None, *points]
        return [
            self._stage(part, start, end, share, with_heads)
            for part, start, end in zip(self._cutting.stages(points), starts, ends, strict=True)
        ]

    def _stage(
        self, part: StagePart, start: CutPoint | None, end: CutPoint | None, share: float, with_heads: bool
    ) -> StageCost:
        graph, device = self._cutting.graph, self._cluster.device
        times = [op_time(graph, graph.ops[op], device, share) for op in part.ops]
        head = self._head_flops(start, end) if with_heads and end is not None else 0.0
        return StageCost(
            forward_s=sum(time.forward_s for time in times),
            backward_s=sum(time.backward_s for time in times),
            head_s=TRAINED_TO_FORWARD * head * share / device.flops_per_s,
            saved_bytes=share * sum(self._saved[op] for op in part.ops),
            parameter_bytes=sum(graph.tensors[tensor].bytes for tensor in part.parameters),
            exit_bytes=0.0 if end is None else share * graph.tensors[end.tensor].bytes,
        )

    def _pipeline(self, kind: str, stages: Sequence[StageCost], depth: int, parts: int) -> Prediction:
        devices = [stages[place::depth] for place in range(depth)]
        slowest = max(sum(stage.busy_s for stage in own) for own in devices)
        if kind in ("gpipe", "1f1b"):
            bubble = sum(stage.busy_s for stage in stages) - slowest
        else:
            bubble = (depth - 1) * slowest / (INTERLEAVED_STAGES if kind == "interleaved" else 3)
        crossed = max(stage.exit_bytes for stage in stages)
        turns = (parts - 1) * len(stages) / depth
        messages = 2 * (len(stages) - 1 + turns * self._exposed(depth))
        weights = max(sum(stage.parameter_bytes for stage in own) for own in devices)
        kept = {
            "gpipe": [parts] * depth,
            "interleaved": [min(parts, depth * 1.5)] * depth,
        }.get(kind, [min(parts, depth - place) for place in range(depth)])
        saved = max(
            many * sum(stage.saved_bytes for stage in own) for many, own in zip(kept, devices, strict=True)
        )
        sent = 2 * parts * crossed * (INTERLEAVED_STAGES if kind == "interleaved" else 1)
        return Prediction(
            times=Times(
                compute_s=parts * slowest,
                bubble_s=bubble,
                redistribute_s=messages * self._send_s(depth, crossed),
                parameters_s=self._average_s(depth, weights),
                optimizer_s=self._update_s(weights),
            ),
            memory=self._memory(weights, saved),
            sent_bytes=sent + self._averaged_bytes(depth, weights),
        )

    def _local(self, stages: Sequence[StageCost], depth: int, parts: int) -> Prediction:
        def step_s(stage: StageCost) -> float:
            return parts * (stage.busy_s + stage.head_s) + self._update_s(stage.parameter_bytes)

        slowest = max(stages, key=step_s)
        crossed = max(stage.exit_bytes for stage in stages)
        link_s = parts * self._send_s(depth, crossed)
        waiting = max(self._exposed(depth) * link_s, link_s - step_s(slowest))
        weights = max(stage.parameter_bytes for stage in stages)
        saved = max(stage.saved_bytes * (1 + stage.head_s / max(stage.busy_s, 1e-12)) for stage in stages)
        return Prediction(
            times=Times(
                compute_s=parts * (slowest.busy_s + slowest.head_s),
                redistribute_s=waiting,
                parameters_s=self._average_s(depth, slowest.parameter_bytes),
                optimizer_s=self._update_s(slowest.parameter_bytes),
            ),
            memory=self._memory(weights, saved + 2 * QUEUE * crossed),
            sent_bytes=parts * crossed + self._averaged_bytes(depth, weights),
        )

    def _memory(self, weights: float, saved: float) -> Memory:
        return Memory(
            weights=weights,
            gradients=weights,
            optimizer_state=self._state_factor * weights,
            saved_activations=saved,
        )

    def _update_s(self, weights: float) -> float:
        """Weights, gradient and state move once each."""
        return (2 + self._state_factor) * weights / self._cluster.device.memory_bytes_per_s

    def _send_s(self, depth: int, nbytes: float) -> float:
        return float(collective_s(self._cluster, "send", self._spans(depth)[0], nbytes))

    def _exposed(self, depth: int) -> float:
        """The share of a message that computing does not hide, on the slowest level that stages cross."""
        pairs = zip(self._cluster.levels, self._spans(depth)[0], strict=True)
        return 1 - next(level.overlap for level, size in reversed(list(pairs)) if size > 1)

    def _average_s(self, depth: int, weights: float) -> float:
        return float(collective_s(self._cluster, "all_reduce", self._spans(depth)[1], weights))

    def _averaged_bytes(self, depth: int, weights: float) -> float:
        replicas = self._cluster.world_size // depth
        return 2 * weights * (replicas - 1) / replicas

    def _spans(self, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of a pipeline and of the replicas of a stage, at each level: replicas are neighbours."""
        left = self._cluster.world_size // depth
        replicas = []
        for level in self._cluster.levels:
            here = math.gcd(left, level.size)
            replicas.append(here)
            left //= here
        levels = zip(self._cluster.levels, replicas, strict=True)
        return tuple(level.size // here for level, here in levels), tuple(replicas)


def _saved_bytes(cutting: Cutting) -> list[float]:
    """What each op keeps for backward."""
    charges = find_charges(cutting.graph)
    return [
        sum(charge.nbytes for charge in own) + op.saved_extra_bytes
        for op, own in zip(cutting.graph.ops, charges, strict=True)
    ]
