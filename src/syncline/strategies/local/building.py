"""Making the blocks of one rank: programs, heads, and which weights each block owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from syncline.graph.cutting import CutPoint, Cutting
from syncline.strategies.local.block import Block, BlockPrograms
from syncline.strategies.local.choosing import HeadPlan, Heads
from syncline.strategies.local.heads import Head
from syncline.strategies.stages.blueprint import Blueprint
from syncline.strategies.stages.program import StageProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """A block before it is made: known on every rank."""

    index: int
    cut: str
    """The name of what leaves it; of the last block, `loss`."""
    training: BlockPrograms
    evaluation: BlockPrograms
    head: HeadPlan | None
    reads: tuple[str, ...]
    """The parameters and buffers of the model that it uses, its head's included."""


class BlockPlans:
    """The blocks that a list of cuts makes, the same on every rank."""

    def __init__(self, blueprint: Blueprint, cuts: Sequence[str], rows: int, heads: Heads) -> None:
        self._blueprint = blueprint
        self._heads = heads
        self._cuts = list(cuts)
        self._cuttings = [blueprint.cutting(rows, training=mode) for mode in (True, False)]
        self.blocks = [self._plan(index) for index in range(len(cuts) + 1)]

    @property
    def training(self) -> Cutting:
        """The graph of a training step, and where it can be cut."""
        return self._cuttings[0]

    def costs(self) -> list[float]:
        """FLOPs of each block with its head, forward."""
        ops = self.training.graph.ops
        return [
            sum(ops[op].forward_flops for op in self._cuttings[0].part(*self._ends(plan.index)).ops)
            + (0 if plan.head is None else plan.head.forward_flops)
            for plan in self.blocks
        ]

    def make(
        self,
        plan: BlockPlan,
        state: Mapping[str, Tensor],
        owned: Sequence[str],
        whole: Mapping[str, Tensor],
        *,
        seed: int,
        recompute: bool,
    ) -> Block:
        """The block with its head.

        Args:
            plan: Which.
            state: What it reads of the model, with copies in place of what it does not own.
            owned: The names that it owns.
            whole: All of the model, from which heads copy.
            seed: Of heads that copy nothing.
            recompute: Whether activations are made again in backward.
        """
        start, end = self._bounds(self._cuttings[0], plan.index)
        head: Head | None = None
        if plan.head is not None and end is not None:
            key = (seed, plan.index)
            head = self._heads.make(plan.head, start, end, whole, self._blueprint.device, key)
        own: list[nn.Parameter] = [
            tensor
            for name in owned
            if isinstance(tensor := state[name], nn.Parameter) and tensor.requires_grad
        ]
        own += [] if head is None else [one for one in head.parameters() if one.requires_grad]
        return Block(
            index=plan.index,
            name=plan.cut if plan.head is None else f"{plan.cut}:{plan.head.kind}",
            training=plan.training,
            evaluation=plan.evaluation,
            head=head,
            state=state,
            owned=tuple(own),
            recompute=recompute,
        )

    def _plan(self, index: int) -> BlockPlan:
        start, end = self._bounds(self._cuttings[0], index)
        training, evaluation = (self._programs(cutting, index) for cutting in self._cuttings)
        head = None if end is None else self._heads.plan(start, end)
        reads = [*training.layers.state_names, *evaluation.layers.state_names]
        reads += head.shares if head is not None else ()
        cut = "loss" if end is None else end.name
        return BlockPlan(
            index=index,
            cut=cut,
            training=training,
            evaluation=evaluation,
            head=head,
            reads=tuple(dict.fromkeys(reads)),
        )

    def _programs(self, cutting: Cutting, index: int) -> BlockPrograms:
        graph, device = cutting.graph, self._blueprint.device
        start, end = self._bounds(cutting, index)
        loss = cutting.end
        layers = StageProgram(graph, cutting.part(start, end or loss), device)
        if end is None:
            logits = StageProgram(graph, cutting.part(start, cutting.logits), device)
            return BlockPrograms(layers=layers, loss=None, logits=logits)
        tail = StageProgram(graph, cutting.part(cutting.logits, loss), device)
        return BlockPrograms(layers=layers, loss=tail, logits=layers)

    def _ends(self, index: int) -> tuple[CutPoint | None, CutPoint]:
        start, end = self._bounds(self._cuttings[0], index)
        return start, end or self._cuttings[0].end

    def _bounds(self, cutting: Cutting, index: int) -> tuple[CutPoint | None, CutPoint | None]:
        start = None if index == 0 else cutting.point(self._cuts[index - 1])
        end = None if index == len(self._cuts) else cutting.point(self._cuts[index])
        return start, end


def owners(plans: Sequence[BlockPlan], model: nn.Module) -> dict[str, int]:
    """The block that owns each parameter and buffer: the first whose layers use it.

    So a tied weight is trained by one block only, and others that use it see it as data. A head that shares a
    weight does not own it. What no block uses belongs to the first.
    """
    owned: dict[str, int] = {}
    for plan in plans:
        for name in (*plan.training.layers.state_names, *plan.evaluation.layers.state_names):
            owned.setdefault(name, plan.index)
    names: Mapping[str, object] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in names:
        owned.setdefault(name, 0)
    return owned
