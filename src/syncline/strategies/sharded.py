"""`sharded`: weights, gradients and optimizer state are cut over the ranks (torch FSDP2, ZeRO-3)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from syncline.errors import StrategyError
from syncline.strategies.blocks import find_blocks
from syncline.strategies.gradient_step import GradientStep, check_even_rows, prepare_model
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.rebinding import parameter_names, rebind
from syncline.workloads.workload import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """Each rank keeps a share of every tensor and gathers a block's weights when it needs them."""

    name: ClassVar[str] = "sharded"
    exact: ClassVar[bool] = True
    summary: ClassVar[str] = "weights, gradients and optimizer state cut over the ranks (FSDP2)"

    group: int | None = None
    """Ranks that share one copy of the weights; copies average gradients (default: all ranks share one)."""
    reshard_after_forward: bool = True
    """Drop gathered weights after forward and gather them again in backward: less memory, more traffic."""

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """The group must divide the ranks."""
        check_even_rows(self.name, world_size=world_size, global_batch=global_batch, accumulate=accumulate)
        if self.group is not None and (self.group < 1 or world_size % self.group):
            fitting = [size for size in range(1, world_size + 1) if world_size % size == 0]
            raise StrategyError(
                f"sharded: group={self.group} does not divide the {world_size} ranks.\n"
                f"Use one of {', '.join(map(str, fitting))}."
            )

    def setup(self, job: Job) -> TrainStep:
        """Shard each block and then the rest, and let the optimizer hold the shards."""
        model = prepare_model(job)
        root = shard(model, job.optimizer, self._mesh(job), reshard_after_forward=self.reshard_after_forward)

        def sync(last: bool) -> AbstractContextManager[Any]:
            _sync_gradients(root, last)
            return nullcontext()

        return _ShardedStep(job, model=model, gradient_sync=sync)

    def _mesh(self, job: Job) -> DeviceMesh:
        world_size = job.rank.world_size
        group = self.group or world_size
        if group == world_size:
            return init_device_mesh(job.device.type, (world_size,), mesh_dim_names=("dp_shard",))
        shape = (world_size // group, group)
        return init_device_mesh(job.device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))


class _ShardedStep(GradientStep):
    """The step whose weights are shards again after each forward, also without a backward."""

    def evaluate(self, batch: Batch) -> Tensor:
        loss = super().evaluate(batch)
        reshard(self.model)
        return loss


def shard(
    model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, *, reshard_after_forward: bool
) -> FSDPModule:
    """Cut each block and then the rest over a mesh, and let the optimizer hold the shards."""
    names = parameter_names(model)
    for block in find_blocks(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard_after_forward)
    root = fully_shard(model, mesh=mesh, reshard_after_forward=reshard_after_forward)
    rebind(optimizer, model, names)
    return root


def reshard(model: nn.Module) -> None:
    """Drop gathered weights, as a backward would have done."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _sync_gradients(root: FSDPModule, wanted: bool) -> None:
    root.set_requires_gradient_sync(wanted)
