"""How the ranks of one node work as one: averaged gradients (DDP) or cut weights (FSDP2) inside the node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from syncline.strategies.averaging.buckets import Buckets
from syncline.strategies.averaging.nodes import NodeGroups
from syncline.strategies.data import refuse_unused, replicate, sync_on_last
from syncline.strategies.gradient_step import GradientSync, no_gradient_sync
from syncline.strategies.protocol import Job
from syncline.strategies.sharded import shard

InsideKind: TypeAlias = Literal["data", "sharded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a step calls and how its gradients are averaged inside the node."""

    forward: nn.Module
    gradient_sync: GradientSync
    check_gradients: Callable[[nn.Module], None] | None = None
    is_sharded: bool = False


def work_as_one(kind: InsideKind, job: Job, model: nn.Module, groups: NodeGroups) -> Inside:
    """Join the ranks of this node; a node of one rank has nobody to join."""
    if groups.size == 1:
        return Inside(forward=model, gradient_sync=no_gradient_sync, check_gradients=refuse_unused)
    if kind == "data":
        replica = replicate(model, job, group=groups.inside)
        return Inside(forward=replica, gradient_sync=sync_on_last(replica), check_gradients=refuse_unused)
    if groups.inside is None:
        raise TypeError("a node of several ranks has a group")
    mesh = DeviceMesh.from_group(groups.inside, job.device.type, mesh_dim_names=("dp_shard",))
    root = shard(model, job.optimizer, mesh, reshard_after_forward=True)

    def sync(last: bool) -> AbstractContextManager[Any]:
        root.set_requires_gradient_sync(last)
        return nullcontext()

    return Inside(forward=model, gradient_sync=sync, check_gradients=None, is_sharded=True)


def average_inside(buckets: Buckets, groups: NodeGroups) -> None:
    """Give all ranks of the node the mean of their values."""
    if groups.size == 1:
        return
    flats = buckets.read()
    for flat in flats:
        dist.all_reduce(flat, group=groups.inside)
        flat.div_(groups.size)
    buckets.write(flats)


def optimizer_floats(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Momenta and the like, in the order of the parameters; counters of steps are left out."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries = [optimizer.state[p] for p in parameters if p in optimizer.state]
    return [
        value
        for entry in entries
        for key, value in sorted(entry.items())
        if key != "step"
        and isinstance(value, torch.Tensor)
        and (value.is_floating_point() or value.is_complex())
    ]
