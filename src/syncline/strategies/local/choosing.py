"""Which head the blocks of a model get, what it costs, and why it is the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from syncline.errors import StrategyError
from syncline.graph.cutting import CutPoint, Cutting
from syncline.graph.opgraph import TensorKind
from syncline.strategies.local.heads import (
    Head,
    HeadKind,
    ReadoutHead,
    Shape,
    fixed_head,
    fixed_head_flops,
)
from syncline.strategies.local.mirror import (
    MirrorHead,
    Unit,
    chain_parts,
    choose_chain,
    mirror_programs,
    units_above,
)
from syncline.workloads.randomness import seeded

COSTLY_VOCABULARY = 0.5
"""A vocabulary projection of more than this share of a block's FLOPs is shared by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPlan:
    """A head that a block will get."""

    kind: HeadKind
    why: str
    forward_flops: int
    share: float
    """Its FLOPs as a share of those of the block's layers."""
    shares: tuple[str, ...] = ()
    """Weights of the model that it uses itself: a readout, or a tied weight that belongs to this block or an
    earlier one. The block that owns them trains them with its loss, other blocks take them as they are."""


class Heads:
    """Decides on and makes the heads of one model."""

    def __init__(self, training: Cutting, evaluation: Cutting, *, kind: HeadKind | None, cap: float) -> None:
        self._training = training
        self._evaluation = evaluation
        self._kind = kind
        self._cap = cap
        self._units: dict[tuple[int, int], Unit] = {}

    def plan(self, start: CutPoint | None, end: CutPoint) -> HeadPlan:
        """The head of the block between two points."""
        kind, why = (self._kind, "as asked") if self._kind is not None else self._default(start, end)
        flops = self._flops(kind, start, end)
        return HeadPlan(
            kind=kind,
            why=why,
            forward_flops=flops,
            share=flops / max(1, self._block_flops(start, end)),
            shares=self._shares(kind, start, end),
        )

    def make(
        self,
        plan: HeadPlan,
        start: CutPoint | None,
        end: CutPoint,
        state: Mapping[str, Tensor],
        device: torch.device,
        seed: Sequence[int],
    ) -> Head:
        """The head, with weights that depend on the seed alone, or are copies of the model's."""
        activation, logits = self._shape(end), self._logits
        if plan.kind == "mirror":
            chain = self._chain(start, end, self._cap)
            programs = mirror_programs(chain, self._training, self._evaluation, device)
            return MirrorHead(*programs, state, shares=plan.shares)
        if plan.kind == "readout":
            weight, bias = self._projection()
            return ReadoutHead(activation[-1], weight, bias, logits).to(device)
        with seeded(*seed):
            return fixed_head(plan.kind, activation, logits).to(device)

    def head_flops(self, end: CutPoint) -> int:
        """FLOPs of the cheapest form of the head at a point, before a block is known."""
        kind = self._kind or self._default(None, end)[0]
        return self._flops(kind, None, end, cap=0.0)

    def _chain(self, start: CutPoint | None, end: CutPoint, cap: float) -> list[Unit]:
        return choose_chain(
            units_above(self._training, end, self._units), cap * self._block_flops(start, end)
        )

    def _shares(self, kind: HeadKind, start: CutPoint | None, end: CutPoint) -> tuple[str, ...]:
        if kind == "readout":
            return tuple(name for name in self._projection() if name)
        if kind != "mirror":
            return ()
        tensors = self._training.graph.tensors
        below = {tensors[one].name for one in self._training.part(None, end).parameters}
        above = [
            tensors[one].name
            for part in chain_parts(self._training, self._chain(start, end, self._cap))
            for one in part.parameters
        ]
        return tuple(sorted(below.intersection(above)))

    def _default(self, start: CutPoint | None, end: CutPoint) -> tuple[HeadKind, str]:
        block = max(1, self._block_flops(start, end))
        if self._projects_tokens(end):
            share = self._flops("linear", start, end) / block
            if share > COSTLY_VOCABULARY:
                return "readout", (
                    f"a vocabulary projection of its own would cost {share:.0%} of the block: all share one"
                )
            return "mirror", "for a language model copies of the layers above close most of the gap"
        if self._is_image(end):
            share = self._flops("mirror", start, end, cap=0.0) / block
            if share > self._cap:
                return "conv", f"even the fewest layers that lead to the logits cost {share:.0%} of the block"
            return "mirror", "for images copies of the layers above close most of the gap"
        return "mirror", "copies of the layers above close most of the gap, and here they are cheap"

    def _flops(self, kind: HeadKind, start: CutPoint | None, end: CutPoint, cap: float | None = None) -> int:
        activation, logits = self._shape(end), self._logits
        if kind == "mirror":
            chain = self._chain(start, end, self._cap if cap is None else cap)
            return sum(unit.flops for unit in chain)
        if kind == "readout":
            self._projection()
            rows = torch.Size(activation[:-1]).numel()
            return 2 * rows * activation[-1] * logits[-1]
        return fixed_head_flops(kind, activation, logits)

    def _block_flops(self, start: CutPoint | None, end: CutPoint) -> int:
        graph = self._training.graph
        return sum(graph.ops[op].forward_flops for op in self._training.part(start, end).ops)

    def _shape(self, point: CutPoint) -> Shape:
        return self._training.graph.tensors[point.tensor].shape

    @property
    def _logits(self) -> Shape:
        return self._shape(self._training.logits)

    def _projects_tokens(self, end: CutPoint) -> bool:
        activation, logits = self._shape(end), self._logits
        return len(activation) == 3 and len(logits) >= 2 and activation[:-1] == logits[:-1]

    def _is_image(self, end: CutPoint) -> bool:
        return len(self._shape(end)) == 4

    def _projection(self) -> tuple[str, str | None]:
        """The names of the weights of the linear op that makes the logits."""
        graph = self._training.graph
        maker = graph.producers[self._training.logits.tensor]
        op = None if maker is None else graph.ops[maker]
        if op is None or op.target != "aten.linear.default":
            raise StrategyError(
                "local: head=readout shares the projection onto the vocabulary, but the model's logits do "
                "not come from a linear layer.\nUse head=mirror or linear."
            )
        names = [
            graph.tensors[tensor].name
            for tensor in op.inputs
            if graph.tensors[tensor].kind is TensorKind.PARAMETER
        ]
        if not names or len(self._logits) < 3:
            raise StrategyError(
                "local: head=readout is for language models, whose logits are one for each token.\n"
                "Use head=mirror or linear."
            )
        return names[0], names[1] if len(names) > 1 else None
