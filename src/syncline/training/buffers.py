"""Buffers, such as the statistics of batch norms, that every rank updates from its own rows.

The first rank's are the model's: all ranks evaluate with them, and they are what a checkpoint holds,
whichever rank writes them. So a resumed run has what the uninterrupted one has.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def share_buffers(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give all ranks of a group the first one's persistent buffers; each of them must call this."""
    if dist.get_world_size(group) == 1:
        return
    parameters = {id(parameter) for parameter in model.parameters()}
    for tensor in model.state_dict(keep_vars=True).values():
        # What is cut over ranks is no rank's own.
        if id(tensor) not in parameters and not isinstance(tensor, DTensor):
            dist.broadcast(tensor, group=group, group_src=0)
