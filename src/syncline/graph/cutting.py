"""Where a graph can be cut into stages: the points at which a single activation crosses.

An activation is what depends on both a sample and a parameter. All else is recomputed in each stage that
needs it: masks and positions, which come from the batch or from nothing, and what is made of parameters
alone. Which cut points are taken is the planner's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from syncline.graph.opgraph import Op, OpGraph, TensorKind, resolve


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A place between two ops where one activation goes on."""

    after: int
    """The last op before the cut."""
    tensor: int
    """What crosses."""
    name: str
    """The name of what crosses: the path of the module that made it, and the op."""


@dataclass(frozen=True, slots=True)
class StagePart:
    """The ops of one stage, and what it takes and gives."""

    ops: tuple[int, ...]
    """In the order of the graph; recomputed ones are in several stages."""
    entry: int | None
    """The activation that comes from the stage before."""
    exit: int
    """What goes on to the next stage; of the last stage, the graph's output."""
    inputs: tuple[int, ...]
    """The tensors of the batch that it reads."""
    parameters: tuple[int, ...]
    buffers: tuple[int, ...]
    constants: tuple[int, ...]
    buffer_updates: tuple[tuple[int, int], ...]
    """Buffers that it assigns to, and the tensors that hold their new values."""


class Cutting:
    """The cut points of one graph, and the stages between those that are chosen."""

    def __init__(self, graph: OpGraph, like: Cutting | None = None) -> None:
        """`like` is the cutting of the same model in another mode; only points of both are kept."""
        if len(graph.outputs) != 1:
            raise ValueError("a graph to be cut must end in one loss")
        self.graph = graph
        self._is_carried = _carried(graph)
        self._names = None if like is None else {point.name for point in like.points}

    @cached_property
    def points(self) -> tuple[CutPoint, ...]:
        """All cut points, from the batch to the loss.

        None stands behind a view: the tensor that it looks at could cross as well.
        """
        found = []
        for op in self.graph.ops:
            if not self._makes_carried(op) or op.is_view or self.graph.outputs[0] in op.outputs:
                continue
            tensors = self.crossing(op.id)
            if len(tensors) == 1:
                found.append(CutPoint(op.id, tensors[0], self.graph.tensors[tensors[0]].name))
        return tuple(point for point in found if self._names is None or point.name in self._names)

    def point(self, name: str) -> CutPoint:
        """The cut point of this name."""
        return next(point for point in self.points if point.name == name)

    @cached_property
    def logits(self) -> CutPoint:
        """The first cut point behind which no parameter is used: what follows is the loss itself."""
        last = max(
            (op for tensor in self.graph.of_kind(TensorKind.PARAMETER) for op in self._users(tensor.id)),
            default=-1,
        )
        for point in self.points:
            if point.after >= last:
                return point
        return self.end

    @property
    def end(self) -> CutPoint:
        """Where the graph ends: the loss leaves it."""
        return CutPoint(len(self.graph.ops) - 1, self.graph.outputs[0], "loss")

    def crossing(self, after: int) -> list[int]:
        """The activations that are made up to an op and used behind it."""
        return [
            tensor
            for tensor, (made, used) in self._lifetimes.items()
            if made <= after < used and self._is_carried[tensor]
        ]

    def stages(self, points: Sequence[CutPoint]) -> tuple[StagePart, ...]:
        """The stages that these cut points make, from the batch to the loss."""
        entries = [None, *points]
        return tuple(self.part(entry, exit) for entry, exit in zip(entries, [*points, self.end], strict=True))

    def part(self, entry: CutPoint | None, exit: CutPoint) -> StagePart:
        """The stage between two cut points."""
        first = 0 if entry is None else entry.after + 1
        taken = None if entry is None else entry.tensor
        wanted = {exit.tensor}
        for op in self.graph.ops[first : exit.after + 1]:
            if op.updates:
                wanted.update(op.outputs)
        updates = tuple(
            (buffer, content)
            for buffer, content in self.graph.buffer_updates.items()
            if first <= self._made_at(content) <= exit.after
        )
        wanted.update(content for _, content in updates)
        ops, read = self._needed(wanted, taken)
        by_kind = {kind: self._of_kind(read, kind) for kind in TensorKind}
        written = [buffer for buffer, _ in updates]
        return StagePart(
            ops=tuple(ops),
            entry=taken if taken in read else None,
            exit=exit.tensor,
            inputs=by_kind[TensorKind.INPUT],
            parameters=by_kind[TensorKind.PARAMETER],
            buffers=tuple(sorted({*by_kind[TensorKind.BUFFER], *written})),
            constants=by_kind[TensorKind.CONSTANT],
            buffer_updates=updates,
        )

    def _needed(self, wanted: Iterable[int], entry: int | None) -> tuple[list[int], set[int]]:
        """The ops that make what is wanted from the entry, and all tensors that they touch."""
        ops: set[int] = set()
        read: set[int] = set()
        waiting = list(wanted)
        while waiting:
            tensor = waiting.pop()
            if tensor in read:
                continue
            read.add(tensor)
            maker = self.graph.producers[tensor]
            if tensor != entry and maker is not None:
                ops.add(maker)
                waiting += self.graph.ops[maker].inputs
        return sorted(ops), read

    def _of_kind(self, tensors: Iterable[int], kind: TensorKind) -> tuple[int, ...]:
        return tuple(sorted(tensor for tensor in tensors if self.graph.tensors[tensor].kind is kind))

    def _made_at(self, tensor: int) -> int:
        maker = self.graph.producers[tensor]
        return -1 if maker is None else maker

    def _users(self, tensor: int) -> list[int]:
        """The ops that need a tensor, also by way of what is not an activation."""
        found: list[int] = []
        for op in self.graph.consumers[tensor]:
            found.append(op)
            for output in self.graph.ops[op].outputs:
                if not self._is_carried[output]:
                    found += self._users(output)
        return found

    def _makes_carried(self, op: Op) -> bool:
        return any(self._is_carried[tensor] for tensor in op.outputs)

    @cached_property
    def _lifetimes(self) -> dict[int, tuple[int, int]]:
        """For each tensor that an op makes, that op and the last one that takes it."""
        return {
            tensor: (op.id, max(self.graph.consumers[tensor], default=-1))
            for op in self.graph.ops
            for tensor in op.outputs
        }


def _carried(graph: OpGraph) -> list[bool]:
    """Which tensors are activations: only these must cross a cut.

    A random draw or the update of a statistic must happen once, so what comes of it is carried too.
    """
    from_sample = [tensor.kind is TensorKind.INPUT for tensor in graph.tensors]
    from_parameter = [tensor.kind is TensorKind.PARAMETER for tensor in graph.tensors]
    carried = [False] * len(graph.tensors)
    for op in graph.ops:
        sample = any(from_sample[tensor] for tensor in op.inputs)
        parameter = any(from_parameter[tensor] for tensor in op.inputs)
        once = bool(op.updates) or torch.Tag.nondeterministic_seeded in resolve(op.target).tags
        mixed = once or (sample and parameter) or any(carried[tensor] for tensor in op.inputs)
        for tensor in op.outputs:
            from_sample[tensor], from_parameter[tensor], carried[tensor] = sample, parameter, mixed
    return carried
