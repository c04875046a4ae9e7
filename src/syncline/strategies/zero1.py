"""`zero1`: like `data`, but each rank keeps the optimizer state of a share of the parameters only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from syncline.strategies.data import refuse_unused, replicate, sync_on_last
from syncline.strategies.gradient_step import GradientStep, check_even_rows, prepare_model
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.rebinding import constructor_defaults
from syncline.strategies.state import apply_state, collect_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero1:
    """Replicated weights; each rank updates its share of them and sends the result to the others."""

    name: ClassVar[str] = "zero1"
    exact: ClassVar[bool] = True
    summary: ClassVar[str] = "like data, with the optimizer state cut over the ranks (ZeRO-1)"

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Any number of ranks that shares the batch evenly."""
        check_even_rows(self.name, world_size=world_size, global_batch=global_batch, accumulate=accumulate)

    def setup(self, job: Job) -> TrainStep:
        """DDP for the gradients, torch's ZeroRedundancyOptimizer for the update."""
        model = prepare_model(job)
        replica = replicate(model, job)
        shared = ZeroRedundancyOptimizer(
            [dict(group) for group in job.optimizer.param_groups],
            optimizer_class=type(job.optimizer),
            **constructor_defaults(job.optimizer),
        )
        return _Zero1Step(job, model=model, replica=replica, shared=shared)


class _Zero1Step(GradientStep):
    """The step whose state is that of the parameters which this rank updates."""

    def __init__(
        self,
        job: Job,
        *,
        model: nn.Module,
        replica: DistributedDataParallel,
        shared: ZeroRedundancyOptimizer,
    ) -> None:
        super().__init__(
            job,
            model=model,
            forward=replica,
            optimizer=shared,
            gradient_sync=sync_on_last(replica),
            check_gradients=refuse_unused,
        )
        # One set of groups: a schedule may act on the optimizer that was handed in or on this one.
        shared.param_groups = job.optimizer.param_groups
        self._shared = shared

    def state_dict(self) -> dict[str, Any]:
        return collect_state(self.model, self._shared.optim)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        apply_state(self.model, self._shared.optim, state)
