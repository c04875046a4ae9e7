"""One block: a run of layers, its head, its loss; and how the losses of blocks teach them.

With h_j what block j gives and l_j the loss of its head, block j learns from l_j and, with an overlap of n,
from l_{j+1}, ..., l_{j+n-1}: its weights get the gradient of their sum (or mean). A loss reaches further
blocks only as cotangents dl_k/dh that are passed back one by one, each through the blocks within its reach
and no further. With n = 1 nothing goes back and no block sees another's loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from syncline.strategies.local.heads import Head
from syncline.strategies.stages.program import StageProgram

Combine = Literal["sum", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPrograms:
    """What a block runs in one mode: its layers, and the loss of its head's logits."""

    layers: StageProgram
    loss: StageProgram | None
    """From logits to the loss; None for the last block, whose layers end in the loss."""
    logits: StageProgram
    """For the last block, its layers up to the logits; for others the same as `layers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Layers that learn together."""

    index: int
    """Its place among all blocks of the model."""
    name: str
    """Where it ends and what head it has: the same in every training that cuts there."""
    training: BlockPrograms
    evaluation: BlockPrograms
    head: Head | None
    """None for the last block, which has the model's own."""
    state: Mapping[str, Tensor]
    """The parameters and buffers of the model; those that another block owns are copies."""
    owned: tuple[nn.Parameter, ...]
    """What this block trains, its head included."""
    recompute: bool = False
    """Whether its activations are made again in backward instead of kept."""

    @property
    def is_last(self) -> bool:
        """Whether its loss is the model's."""
        return self.head is None

    def run(self, entry: Tensor | None, batch: Sequence[Tensor], *, training: bool) -> Tensor:
        """What the layers give: the activation for the next block, or the loss."""
        layers = (self.training if training else self.evaluation).layers
        if self.recompute and training:
            return checkpoint(layers, self.state, batch, entry, use_reentrant=False)
        return layers(self.state, batch, entry)

    def loss(self, out: Tensor, batch: Sequence[Tensor], *, training: bool) -> Tensor:
        """The block's own loss, from what its layers gave."""
        tail = (self.training if training else self.evaluation).loss
        if self.head is None or tail is None:
            return out
        return tail(self.state, batch, self.head(out, batch, self.state))

    def logits(self, entry: Tensor | None, out: Tensor | None, batch: Sequence[Tensor]) -> Tensor:
        """What the block predicts, in evaluation."""
        if self.head is None:
            return self.evaluation.logits(self.state, batch, entry)
        if out is None:
            raise ValueError("a block with a head needs what its layers gave")
        return self.head(out, batch, self.state)


@dataclass(slots=True)
class Run:
    """A block's forward pass, kept until it has learned from it."""

    block: Block
    entry: Tensor | None
    out: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How far a loss reaches, and how several that reach a block are combined."""

    blocks: int
    overlap: int = 1
    combine: Combine = "sum"
    context: Callable[[int, str], AbstractContextManager[Any]] = lambda block, what: nullcontext()
    """In which a block's layers, or its head, run forward: precision and random numbers."""

    def reached_back(self, block: int) -> int:
        """How many cotangents a block passes back to the one before."""
        return 0 if block == 0 else min(self.overlap - 1, self.blocks - block)

    def forward(self, blocks: Sequence[Block], entry: Tensor | None, batch: Sequence[Tensor]) -> list[Run]:
        """Forward through neighbouring blocks, each cut off from the one before."""
        runs: list[Run] = []
        for block in blocks:
            given = None if entry is None else entry.detach()
            if given is not None and self.reached_back(block.index):
                given.requires_grad_()
            with self.context(block.index, "layers"):
                out = block.run(given, batch, training=True)
            runs.append(Run(block, given, out))
            entry = out
        return runs

    def learn(
        self,
        runs: Sequence[Run],
        batch: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        *,
        parts: int = 1,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Add gradients to the blocks' weights; their losses, and the cotangents for the block before.

        Args:
            runs: What `forward` gave.
            batch: The same batch.
            cotangents: Of the losses behind these blocks, the nearest first.
            parts: Micro-batches of the step, over which losses are averaged.
        """
        losses: list[Tensor] = []
        passed = list(cotangents)
        for run in reversed(runs):
            with self.context(run.block.index, "head"):
                loss = run.block.loss(run.out, batch, training=True)
            losses.append(loss.detach())
            back = self._pass_back(run, loss, passed)
            self._add_gradients(run, loss, passed, parts)
            passed = back
        return losses[::-1], passed

    def _pass_back(self, run: Run, loss: Tensor, cotangents: Sequence[Tensor]) -> list[Tensor]:
        count = self.reached_back(run.block.index)
        if not count or run.entry is None:
            return []
        back = [torch.autograd.grad(loss, run.entry, retain_graph=True)[0]]
        for cotangent in cotangents[: count - 1]:
            back.append(torch.autograd.grad(run.out, run.entry, cotangent, retain_graph=True)[0])
        return back

    def _add_gradients(self, run: Run, loss: Tensor, cotangents: Sequence[Tensor], parts: int) -> None:
        if not run.block.owned:
            return
        shares = parts * (1 + len(cotangents) if self.combine == "mean" else 1)
        roots: list[Any] = [loss / shares]
        gradients: list[Any] = [None]
        for cotangent in cotangents:
            roots.append(run.out)
            gradients.append(cotangent / shares)
        torch.autograd.backward(roots, gradients, inputs=list(run.block.owned))
