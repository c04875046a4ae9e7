"""Writes the program of one rank from a graph and the layouts of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from syncline.graph.opgraph import Op, OpGraph
from syncline.planning.saving import block_of
from syncline.strategies.planned.layout import Layout
from syncline.strategies.planned.layouts import GraphLayouts
from syncline.strategies.planned.ops import OpEmitter, Recomputing, call_whole
from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.program import Key, Program, Segment
from syncline.strategies.planned.randomness import RandomStreams
from syncline.strategies.planned.ranks import LiveMesh
from syncline.strategies.planned.segment import SegmentWriter
from syncline.strategies.planned.weights import FetchOrder


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all programs of one step share."""

    mesh: LiveMesh
    placed: Mapping[str, PlacedParameter]
    kept: Mapping[str, Layout]
    """The layout of each parameter's leaf and of each buffer."""
    streams: RandomStreams
    recomputing: Recomputing
    rows: Layout
    """The layout in which the tensors of a batch are given."""
    optimise: bool = False
    """Whether `torch.compile` is used."""


class ProgramBuilder:
    """Builds one program."""

    def __init__(self, layouts: GraphLayouts, setting: Setting, *, recompute: bool) -> None:
        self.layouts = layouts
        self.graph = layouts.graph
        self.setting = setting
        self.emitter = OpEmitter(setting.mesh, setting.streams, setting.recomputing)
        self.order = FetchOrder()
        folded = _fold_constants(layouts.graph, setting.mesh.device)
        self._folded = frozenset(folded)
        self.constants = _needed(layouts.graph, folded)
        self._recompute = recompute

    @property
    def has_random(self) -> bool:
        """Whether some op draws random numbers."""
        return self.emitter.has_random

    def build(self) -> Program:
        """The program."""
        writers = [SegmentWriter(self, run, recomputed=recomputed) for run, recomputed in self._runs()]
        for writer in writers:
            writer.write_ops()
        if self.graph.buffer_updates:
            writers.append(SegmentWriter(self, [], recomputed=False))
            writers[-1].write_updates()
        loss: Key = ("made", self.graph.outputs[0])
        segments = self._finish(writers, loss)
        constants: dict[Key, Tensor] = {("constant", one): value for one, value in self.constants.items()}
        return Program(segments, constants, loss, self.setting.recomputing)

    def _runs(self) -> list[tuple[list[Op], bool]]:
        """The ops in the segments in which they are run, and whether these are recomputed."""
        ops = [op for op in self.graph.ops if any(out not in self._folded for out in op.outputs)]
        if not self._recompute:
            return [(ops, False)]
        runs: list[tuple[list[Op], bool]] = []
        for op in ops:
            if runs and block_of(runs[-1][0][-1]) == block_of(op):
                runs[-1][0].append(op)
            else:
                runs.append(([op], block_of(op) is not None))
        return runs

    def _finish(self, writers: Sequence[SegmentWriter], loss: Key) -> list[Segment]:
        """Lets each segment give what is needed after it, and only that."""
        needed = {loss}
        segments: list[Segment] = []
        for writer in reversed(writers):
            segments.append(writer.finish(needed, optimise=self.setting.optimise))
            needed |= set(writer.takes)
        return segments[::-1]


def _fold_constants(graph: OpGraph, device: torch.device) -> dict[int, Tensor]:
    """The values of constants, and of ops on nothing else: positions, masks. They are computed once."""
    values = {tensor: value.to(device) for tensor, value in graph.constants.items()}
    for op in graph.ops:
        if not op.space.random and all(tensor in values for tensor in op.inputs):
            outputs = call_whole(op, [values[tensor] for tensor in op.inputs], device)
            values.update(zip(op.outputs, outputs, strict=True))
    return values


def _needed(graph: OpGraph, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Those of the constants that ops which are not computed once take."""
    running = (op for op in graph.ops if any(out not in values for out in op.outputs))
    taken = {tensor for op in running for tensor in op.inputs}
    return {tensor: value for tensor, value in values.items() if tensor in taken}
