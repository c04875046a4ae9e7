"""`data`: every rank has the whole model and a share of the batch; gradients are averaged (torch DDP)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from syncline.errors import ModelError, StrategyError
from syncline.strategies.gradient_step import GradientStep, check_even_rows, prepare_model
from syncline.strategies.protocol import Job, TrainStep

POWERSGD_START = 10
"""Steps before PowerSGD begins."""


class _ExactUnlessCompressed:
    """`exact` of the class, and of an instance with its options."""

    def __get__(self, strategy: DataParallel | None, kind: type[DataParallel]) -> bool:
        return strategy is None or strategy.compress == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallel:
    """Replicated weights, averaged gradients, communication overlapped with backward."""

    name: ClassVar[str] = "data"
    exact: ClassVar[bool] = cast(bool, _ExactUnlessCompressed())
    summary: ClassVar[str] = "whole model on every rank, gradients averaged each step (DDP)"

    bucket_mb: int = 25
    """Gradients are reduced in buckets of about this size."""
    find_unused: bool = False
    """Allow parameters that get no gradient in some steps (slower)."""
    compress: Literal["none", "fp16", "powersgd"] = "none"
    """Send gradients as 16-bit numbers, or as factors of low rank with error feedback (PowerSGD)."""
    rank: int = 4
    """Of PowerSGD's factors."""

    def __post_init__(self) -> None:
        if self.bucket_mb < 1:
            raise StrategyError(f"data: bucket-mb is {self.bucket_mb}; it must be at least 1 (megabyte).")
        if self.rank < 1:
            raise StrategyError(f"data: rank is {self.rank}; factors have a rank of at least 1.")

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Any number of ranks that shares the batch evenly."""
        check_even_rows(self.name, world_size=world_size, global_batch=global_batch, accumulate=accumulate)

    def setup(self, job: Job) -> TrainStep:
        """Wrap the model in DDP."""
        model = prepare_model(job)
        replica = replicate(model, job, bucket_mb=self.bucket_mb, find_unused=self.find_unused)
        compress_gradients(replica, self.compress, rank=self.rank)
        return GradientStep(
            job,
            model=model,
            forward=replica,
            gradient_sync=sync_on_last(replica),
            check_gradients=None if self.find_unused else refuse_unused,
        )


def replicate(
    model: nn.Module,
    job: Job,
    *,
    bucket_mb: int = 25,
    find_unused: bool = False,
    group: dist.ProcessGroup | None = None,
) -> DistributedDataParallel:
    """The model under DDP on the job's device, over all ranks or those of a group."""
    return DistributedDataParallel(
        model,
        process_group=group,
        device_ids=None if job.device.type == "cpu" else [job.device.index],
        bucket_cap_mb=bucket_mb,
        find_unused_parameters=find_unused,
        gradient_as_bucket_view=True,
    )


def compress_gradients(
    replica: DistributedDataParallel, kind: Literal["none", "fp16", "powersgd"], *, rank: int
) -> None:
    """Let torch's own hooks send less than the gradients themselves."""
    if kind == "fp16":
        replica.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "powersgd":
        # Torch wants some plain steps first, in which DDP settles its buckets.
        state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=POWERSGD_START)
        replica.register_comm_hook(state, powerSGD_hook)


def refuse_unused(model: nn.Module) -> None:
    """Refuse parameters without a gradient: DDP waits for them, and the rest is not averaged meanwhile."""
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if unused:
        shown = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        raise ModelError(
            f"These parameters get no gradient, for the loss does not depend on them: {shown}.\n"
            "Freeze them with requires_grad_(False), or use --strategy data:find-unused=true, or sharded."
        )


def sync_on_last(replica: DistributedDataParallel) -> Callable[[bool], AbstractContextManager[Any]]:
    """Average gradients in the last micro-batch's backward only."""

    def sync(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else replica.no_sync()

    return sync
