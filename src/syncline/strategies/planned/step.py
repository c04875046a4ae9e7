"""The step of a planned training on one rank."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from syncline.planning.plan import Plan
from syncline.strategies.planned.clipping import clip_gradients
from syncline.strategies.planned.engine import Engine
from syncline.strategies.planned.optimizing import Optimizing
from syncline.strategies.planned.state import PlannedState
from syncline.strategies.protocol import Job, Together
from syncline.workloads.batch import split_rows, to_device
from syncline.workloads.workload import Batch


class PlannedStep(Together):
    """Forward, backward, clipping and optimizer step over this rank's shards."""

    def __init__(self, job: Job, plan: Plan, engine: Engine, optimizing: Optimizing) -> None:
        self.model: nn.Module = job.model
        self.optimizer: torch.optim.Optimizer = job.optimizer
        self.plan = plan
        self._engine = engine
        self._optimizing = optimizing
        self._options = job.options
        self._device = job.device
        self._state = PlannedState(job.model, job.optimizer, engine.placed, engine.mesh)
        engine.refresh()

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this rank's rows; the mean over ranks is the loss of the global batch."""
        self.model.train()
        self._engine.settle()
        parts = split_rows(to_device(batch, self._device), self._options.accumulate)
        total = torch.zeros((), device=self._device)
        with self._engine.random_step():
            for number, part in enumerate(parts, start=1):
                total += self._engine.train(
                    part, share=1 / len(parts), last=number == len(parts), autocast=self._autocast()
                )
        if self._options.clip_norm is not None:
            clip_gradients(
                self._engine.placed.values(),
                self._optimizing.others,
                self._engine.mesh,
                self._options.clip_norm,
            )
        self._optimizing.step()
        self._engine.refresh()
        return total

    def evaluate(self, batch: Batch) -> Tensor:
        """The loss on these rows without training; the mean over ranks is that of the global batch."""
        self.model.eval()
        self._engine.settle()
        with torch.no_grad(), self._autocast():
            return self._engine.evaluate(to_device(batch, self._device))

    def rows(self, global_batch: int) -> slice:
        """The rows that this rank's ops need; ranks that need the same get the same."""
        parts, own = self._engine.row_parts
        share = global_batch // parts
        return slice(own * share, (own + 1) * share)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state by parameter name."""
        return self._state.collect()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, perhaps from another strategy or plan."""
        self._state.apply(state)
        self._engine.refresh()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._options.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)
