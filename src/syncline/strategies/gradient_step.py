"""The step of every strategy in which each rank runs the whole model on its own rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from syncline.errors import StrategyError
from syncline.strategies.blocks import recompute_blocks
from syncline.strategies.protocol import Job, Together
from syncline.strategies.state import apply_state, collect_state
from syncline.workloads.batch import split_rows, to_device
from syncline.workloads.workload import Batch

GradientSync = Callable[[bool], AbstractContextManager[Any]]
"""A context in which backward averages gradients over ranks (True) or only adds them up (False)."""


def no_gradient_sync(_last: bool) -> AbstractContextManager[None]:
    """For a single rank: there is nobody to average with."""
    return nullcontext()


class GradientStep(Together):
    """Forward, backward, clipping and optimizer step, with gradients accumulated over micro-batches."""

    def __init__(
        self,
        job: Job,
        *,
        model: nn.Module,
        forward: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        gradient_sync: GradientSync = no_gradient_sync,
        check_gradients: Callable[[nn.Module], None] | None = None,
    ) -> None:
        """`forward` is what is called (a wrapper of `model`, such as DDP); by default the model.

        `check_gradients` looks at the model once, after the first backward.
        """
        self.model = model
        self.optimizer = optimizer or job.optimizer
        self._forward = forward or model
        self._gradient_sync = gradient_sync
        self._check_gradients = check_gradients
        self._compute_loss = job.compute_loss
        self._rank = job.rank
        self._device = job.device
        self._options = job.options

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this rank's rows; their mean loss, detached."""
        self.model.train()
        parts = split_rows(to_device(batch, self._device), self._options.accumulate)
        total = torch.zeros((), device=self._device)
        for number, part in enumerate(parts, start=1):
            with self._gradient_sync(number == len(parts)):
                with self._autocast():
                    loss = self._compute_loss(self._forward, part) / len(parts)
                loss.backward()
            total += loss.detach()
        if self._check_gradients is not None:
            self._check_gradients(self.model)
            self._check_gradients = None
        self._update()
        return total

    def evaluate(self, batch: Batch) -> Tensor:
        """This rank's mean loss on its rows, without training."""
        self.model.eval()
        with torch.no_grad(), self._autocast():
            return self._compute_loss(self.model, to_device(batch, self._device)).detach()

    def rows(self, global_batch: int) -> slice:
        """An equal run of rows for each rank, in rank order."""
        share = global_batch // self._rank.world_size
        return slice(self._rank.index * share, (self._rank.index + 1) * share)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state by parameter name."""
        return collect_state(self.model, self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, perhaps from another strategy."""
        apply_state(self.model, self.optimizer, state)

    def _update(self) -> None:
        """Change the weights by the gradients that backward left."""
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._options.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _clip(self) -> None:
        limit = self._options.clip_norm
        if limit is None:
            return
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)


def prepare_model(job: Job) -> nn.Module:
    """The job's model with the options that change the module itself applied."""
    if job.options.activation_checkpointing:
        recompute_blocks(job.model)
    return job.model


def check_even_rows(name: str, *, world_size: int, global_batch: int, accumulate: int) -> None:
    """Refuse a global batch that ranks and micro-batches cannot share evenly, so that means stay means."""
    parts = world_size * accumulate
    if global_batch % parts:
        lower, upper = global_batch // parts * parts, (global_batch // parts + 1) * parts
        fitting = " or ".join(str(size) for size in (lower, upper) if size)
        ranks = f"{world_size} rank" + "s" * (world_size > 1)
        pieces = f"{accumulate} micro-batch" + "es" * (accumulate > 1)
        raise StrategyError(
            f"Strategy '{name}' cannot share a global batch of {global_batch} among {ranks} x {pieces}: "
            f"{global_batch} is not a multiple of {parts}.\n"
            f"Use --batch {fitting}, or other numbers of ranks or micro-batches."
        )
