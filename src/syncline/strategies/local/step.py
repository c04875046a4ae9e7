"""The step of the strategy `local`: this rank's blocks learn from each batch, and pass it on at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.errors import StrategyError
from syncline.strategies.local.block import Block, Rule
from syncline.strategies.local.building import BlockPlans
from syncline.strategies.local.head_state import HeadState
from syncline.strategies.local.queues import Marker
from syncline.strategies.local.refresh import Refresh
from syncline.strategies.local.shared import Forwarding
from syncline.strategies.local.transport import Transport
from syncline.strategies.protocol import Job, Together
from syncline.strategies.stages.averaging import average_over_replicas
from syncline.strategies.stages.layout import Layout
from syncline.strategies.state import apply_state, collect_state
from syncline.workloads.batch import count_rows, list_tensors, split_rows, to_device
from syncline.workloads.workload import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """What one rank's step works with."""

    blocks: Sequence[Block]
    plans: BlockPlans
    rule: Rule
    layout: Layout
    transport: Transport
    forwarding: Forwarding
    refresh: Refresh
    cuts: tuple[str, ...]
    """Of the whole model."""
    rows: int
    """Of one micro-batch."""
    seed: int
    is_random: bool
    """Whether the layers draw random numbers."""
    notes: tuple[str, ...]
    lead: int


class LocalStep(Together):
    """Receive, forward, send at once, local loss, backward, step."""

    def __init__(self, job: Job, parts: StepParts) -> None:
        self.model = job.model
        self.optimizer = job.optimizer
        self.buffer_group: dist.ProcessGroup | None = parts.layout.peers
        self.notes = parts.notes
        self.lead = parts.lead
        self.is_apart = parts.lead > 0
        self.loss_weight = 1.0 if parts.layout.is_last else 0.0
        self.blocks = parts.blocks
        self.plans = parts.plans
        self.rule = parts.rule
        self.transport = parts.transport
        self._parts = parts
        self._options = job.options
        self._device = job.device
        self._done = 0
        self._heads = HeadState(
            job.optimizer, parts.blocks, cuts=parts.cuts, readouts=parts.refresh.all_names
        )

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this replica's rows; the mean loss of this rank's last block, detached."""
        parts = self._parts
        self._set_mode(training=True)
        parts.transport.markers.pass_on(Marker.TRAIN)
        parts.refresh.begin(self._done)
        pieces = split_rows(to_device(batch, self._device), self._options.accumulate)
        total = torch.zeros((), device=self._device)
        for number, piece in enumerate(pieces):
            if number == 0:
                parts.forwarding.receive()
            total += self._learn(list_tensors(piece), number, len(pieces)) / len(pieces)
        self._update()
        self._done += 1
        return total

    def evaluate(self, batch: Batch) -> Tensor:
        """The mean loss of this rank's last block on its rows, without training."""
        passed = self._pass(batch)
        with torch.no_grad(), self._autocast():
            last = self.blocks[-1]
            losses = [last.loss(outs[-1], tensors, training=False) for _, outs, tensors in passed]
            return torch.stack(losses).mean()

    def predict(self, batch: Batch) -> list[Tensor]:
        """The logits of each of this rank's blocks on its rows."""
        passed = self._pass(batch)
        with torch.no_grad(), self._autocast():
            pieces = [
                [
                    block.logits(entry, out, tensors)
                    for block, entry, out in zip(self.blocks, entries, outs, strict=True)
                ]
                for entries, outs, tensors in passed
            ]
        return [torch.cat(of_block) for of_block in zip(*pieces, strict=True)]

    def rows(self, global_batch: int) -> slice:
        """The rows of this rank's replica: all ranks of a pipeline are given the same."""
        return self._parts.layout.rows(global_batch)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state of this rank's blocks by parameter name, and those of its heads."""
        self._parts.transport.markers.pass_on(Marker.CHECKPOINT)
        state = collect_state(self.model, self.optimizer)
        return state | self._heads.collect(self._parts.refresh.snapshots(), self._done)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, perhaps from another strategy or other blocks: heads it lacks start anew."""
        apply_state(self.model, self.optimizer, state)
        self._done = self._heads.apply(state)
        refresh = self._parts.refresh
        if not self._heads.apply_readouts(state, refresh.snapshots()):
            refresh.start_from_owner()

    def _learn(self, batch: Sequence[Tensor], number: int, pieces: int) -> Tensor:
        parts = self._parts
        transport, layout = parts.transport, parts.layout
        rule = replace(parts.rule, context=self._context(number))
        runs = rule.forward(self.blocks, transport.receive_activation(), batch)
        if not layout.is_last:
            transport.send_activation(runs[-1].out)
            if number == 0:
                parts.forwarding.send()
        losses, back = rule.learn(runs, batch, transport.receive_cotangents(), parts=pieces)
        transport.send_cotangents(back)
        return losses[-1]

    def _update(self) -> None:
        parameters = [p for block in self.blocks for p in block.owned]
        gradients = [p.grad for p in parameters if p.grad is not None]
        average_over_replicas(gradients, self._parts.layout)
        if self._options.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._options.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._heads.step()

    def _pass(self, batch: Batch) -> list[tuple[list[Tensor | None], list[Tensor], list[Tensor]]]:
        """Each micro-batch through this rank's blocks in evaluation: entries, outputs, and its tensors."""
        parts = self._parts
        self._set_mode(training=False)
        count, rest = divmod(count_rows(batch), parts.rows)
        if rest or not count:
            raise StrategyError(
                f"local: a batch of {count_rows(batch)} rows to evaluate is not a multiple of {parts.rows}, "
                "the rows that stages hand over.\nEvaluate on batches as large as those of training."
            )
        parts.transport.markers.pass_on(Marker.EVALUATE)
        passed = []
        with torch.no_grad(), self._autocast():
            for number, piece in enumerate(split_rows(to_device(batch, self._device), count)):
                if number == 0:
                    parts.forwarding.receive()
                passed.append(self._pass_piece(list_tensors(piece), number))
        return passed

    def _pass_piece(
        self, tensors: list[Tensor], number: int
    ) -> tuple[list[Tensor | None], list[Tensor], list[Tensor]]:
        entries: list[Tensor | None] = []
        outs: list[Tensor] = []
        entry = self._parts.transport.receive_activation()
        for block in self.blocks:
            entries.append(entry)
            entry = block.run(entry, tensors, training=False)
            outs.append(entry)
        if not self._parts.layout.is_last:
            self._parts.transport.send_activation(outs[-1])
            if number == 0:
                self._parts.forwarding.send()
        return entries, outs, tensors

    def _set_mode(self, *, training: bool) -> None:
        self.model.train(training)
        for block in self.blocks:
            if block.head is not None:
                block.head.train(training)

    def _context(self, number: int) -> Callable[[int, str], AbstractContextManager[Any]]:
        """Precision, and random numbers that depend on step, micro-batch, replica and block alone."""
        key = (self._parts.seed, self._done, number, self._parts.layout.replica)

        @contextmanager
        def within(block: int, what: str) -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(self._autocast())
                if self._parts.is_random:
                    stack.enter_context(_reseeded(self._device, (*key, block, len(what))))
                yield

        return within

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._options.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)


@contextmanager
def _reseeded(device: torch.device, key: Sequence[int]) -> Iterator[None]:
    """Inside, torch's random numbers depend on the key alone. Outside, nothing changes."""
    (word,) = np.random.SeedSequence([one % 2**64 for one in key]).generate_state(1)
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        torch.manual_seed(int(word))
        yield
