"""Giving a state to ranks that have none, or that have come apart from the others of their node."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.strategies.averaging.nodes import NodeGroups
from syncline.strategies.state import collect_state


def share_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, groups: NodeGroups, *, is_new: bool
) -> None:
    """Newcomers get the first rank's weights and optimizer state; then each node has its first rank's.

    All get the first rank's counters of steps: a node may have made one step more when another was lost.
    Every rank must call this, and the first rank must not be new.
    """
    state = collect_state(model, optimizer)
    tensors = [value for _, value in sorted(state.items()) if isinstance(value, Tensor)]
    for name, value in sorted(state.items()):
        if name.startswith("optimizer.") and isinstance(value, Tensor) and not value.dim():
            dist.broadcast(value, src=0)
    flags: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(flags, is_new)
    if any(flags):
        for tensor in tensors:
            received = tensor.clone()
            dist.broadcast(received, src=0)
            if is_new:
                tensor.copy_(received)
    if groups.size > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=groups.members[0], group=groups.inside)
