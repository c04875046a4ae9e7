"""Buffers, such as the statistics of batch norms, that every rank updates from its own rows.

The first rank's are the model's: all ranks evaluate with them, and they are what a checkpoint holds,
whichever rank writes them. So a resumed run has what the uninterrupted one has.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from syncline.strategies.protocol import TrainStep


def share_buffers(step: TrainStep) -> None:
    """Give all ranks that hold the same buffers the first one's; every one of them must call this.

    Where nodes train weights of their own, they keep their buffers with them.
    """
    group = step.buffer_group
    if dist.get_world_size(group) == 1 or len(step.scopes) > 1:
        return
    parameters = {id(parameter) for parameter in step.model.parameters()}
    for tensor in step.model.state_dict(keep_vars=True).values():
        # What is cut over ranks is no rank's own.
        if id(tensor) not in parameters and not isinstance(tensor, DTensor):
            dist.broadcast(tensor, group=group, group_src=0)
