"""fairscale's sharding of optimizer state and gradients."""

from __future__ import annotations

from typing import Any

from peer import Task, Trainer, plain_loop
from torch import nn

from syncline.strategies.rebinding import constructor_defaults


def fairscale_oss(task: Task) -> Trainer:
    """Optimizer state sharding under torch's DDP."""
    return plain_loop(task, nn.parallel.DistributedDataParallel(task.model), _sharded_optimizer(task))


def fairscale_sharded_ddp(task: Task) -> Trainer:
    """Optimizer state and gradients sharded."""
    from fairscale.nn.data_parallel import ShardedDataParallel  # pyrefly: ignore[missing-import]

    optimizer = _sharded_optimizer(task)
    model = ShardedDataParallel(task.model, optimizer)
    # Gradients are views of its buffers. Dropped, as the optimizer would, others are used than are reduced.
    return plain_loop(task, model, optimizer, clear=model.zero_grad)


def _sharded_optimizer(task: Task) -> Any:
    from fairscale.optim import OSS  # pyrefly: ignore[missing-import]

    groups = [dict(group) for group in task.optimizer.param_groups]
    optimizer = OSS(groups, optim=type(task.optimizer), **constructor_defaults(task.optimizer))
    # Its step takes the rate from here.
    optimizer.param_groups = task.optimizer.param_groups
    return optimizer
