"""What the shards of one op say to each other. Without a group a shard is alone, and nothing is sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which type sums over many elements of this type are kept."""
    return dtype if dtype is torch.float64 else torch.float32


def start_sum(tensor: Tensor, group: Group) -> Callable[[], Tensor]:
    """Begins to sum a tensor over the group, in place; the function returned waits for it."""
    if group is None or group.size() == 1:
        return lambda: tensor
    work = dist.all_reduce(tensor, group=group, async_op=True)

    def finished() -> Tensor:
        work.wait()
        return tensor

    return finished


def summed(tensor: Tensor, group: Group) -> Tensor:
    """The sum over the group, in place."""
    return start_sum(tensor, group)()


def gathered(tensor: Tensor, group: Group) -> Tensor:
    """The tensors of all members, in their order, along a new first dim."""
    if group is None or group.size() == 1:
        return tensor.unsqueeze(0)
    together = tensor.new_empty((group.size(), *tensor.shape))
    gather_into(together.flatten(0, 1), tensor, group)
    return together


def gather_into(whole: Tensor, own: Tensor, group: Group) -> None:
    """Fills a tensor with those of all members, one after another along its first dim."""
    if group is None or group.size() == 1:
        whole.copy_(own.view_as(whole))
    else:
        dist.all_gather_single(whole, own.contiguous(), group=group)


def scattered_sum(tensor: Tensor, group: Group) -> Tensor:
    """This member's share, along the first dim, of the sum over the group."""
    if group is None or group.size() == 1:
        return tensor
    own = tensor.new_empty((tensor.shape[0] // group.size(), *tensor.shape[1:]))
    dist.reduce_scatter_single(own, tensor.contiguous(), group=group)
    return own


def combined_moments(mean: Tensor, squares: Tensor, count: int, group: Group) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations over all members, from each one's own.

    Chan's formula: deviations are taken from means, never sums of squares from one another, so that a mean
    much larger than the spread costs no digits. One gather; members may have different counts.

    Args:
        mean: Of this member's elements, one for each row.
        squares: The sum of their squared deviations from it.
        count: How many elements of a row this member has.
        group: The members.
    """
    if group is None or group.size() == 1:
        return mean, squares
    own = torch.cat([mean.flatten(), squares.flatten(), mean.new_tensor([count])])
    everyone = gathered(own, group)
    counts = everyone[:, -1:]
    means, deviations = everyone[:, :-1].chunk(2, dim=1)
    middle = (counts * means).sum(0) / counts.sum()
    total = (deviations + counts * (means - middle).square()).sum(0)
    return middle.view_as(mean), total.view_as(squares)
