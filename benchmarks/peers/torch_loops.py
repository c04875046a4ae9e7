"""Torch's own ways to train in parallel, in plain loops: what every wrapper is measured by."""

from __future__ import annotations

import torch.distributed as dist
from peer import Task, Trainer, plain_loop
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from syncline.strategies.rebinding import constructor_defaults
from syncline.strategies.sharded import shard


def torch_ddp(task: Task) -> Trainer:
    """DistributedDataParallel."""
    return plain_loop(task, nn.parallel.DistributedDataParallel(task.model), task.optimizer)


def torch_zero(task: Task) -> Trainer:
    """DistributedDataParallel and ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(task.model)
    optimizer = ZeroRedundancyOptimizer(
        [dict(group) for group in task.optimizer.param_groups],
        optimizer_class=type(task.optimizer),
        **constructor_defaults(task.optimizer),
    )
    # Its step takes the rate from here.
    optimizer.param_groups = task.optimizer.param_groups
    return plain_loop(task, model, optimizer)


def torch_fsdp2(task: Task) -> Trainer:
    """`fully_shard` of each block and of the rest."""
    mesh = init_device_mesh(next(task.model.parameters()).device.type, (dist.get_world_size(),))
    return plain_loop(task, shard_model(task, task.model, mesh), task.optimizer)


def shard_model(task: Task, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The model cut over a mesh, block by block, with its optimizer."""
    shard(model, task.optimizer, mesh, reshard_after_forward=True)
    return model
