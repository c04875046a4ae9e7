"""Thin wrappers around torch's own ways: Accelerate and Lightning Fabric."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from peer import Task, Trainer, plain_loop
from torch import nn
from torch_loops import shard_model


def accelerate_ddp(task: Task) -> Trainer:
    """Hugging Face Accelerate."""
    from accelerate import Accelerator  # pyrefly: ignore[missing-import]

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(task.model, task.optimizer)
    return plain_loop(task, model, optimizer, backward=accelerator.backward)


def fabric_ddp(task: Task) -> Trainer:
    """Lightning Fabric with DDP."""
    fabric = _fabric("ddp")
    model, optimizer = fabric.setup(task.model, task.optimizer)
    return plain_loop(task, model, optimizer, backward=fabric.backward)


def fabric_fsdp2(task: Task) -> Trainer:
    """Lightning Fabric's model parallelism, over the data axis alone: FSDP2."""
    from lightning_fabric.strategies import ModelParallelStrategy  # pyrefly: ignore[missing-import]

    def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
        return shard_model(task, model, mesh["data_parallel"])

    fabric = _fabric(
        ModelParallelStrategy(parallelize, data_parallel_size=dist.get_world_size(), tensor_parallel_size=1)
    )
    model = fabric.setup_module(task.model)
    return plain_loop(task, model, fabric.setup_optimizers(task.optimizer), backward=fabric.backward)


def _fabric(strategy: Any) -> Any:
    from lightning_fabric import Fabric  # pyrefly: ignore[missing-import]

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy=strategy)
    fabric.launch()
    return fabric
