"""Softmax and its logarithm along a dim that is split: one gather of maxima and sums, one sum backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from syncline.graph.opgraph import resolve
from syncline.graph.space import DimKind
from syncline.strategies.planned.kernels.exchange import Group, gathered, statistics_dtype, summed
from syncline.strategies.planned.kernels.shard import Kernel, OpShard


def softmax(shard: OpShard) -> Kernel:
    """The kernel of `softmax` and `_softmax`."""
    return _kernel(shard, _Softmax)


def log_softmax(shard: OpShard) -> Kernel:
    """The kernel of `log_softmax` and `_log_softmax`."""
    return _kernel(shard, _LogSoftmax)


def _kernel(shard: OpShard, function: type[torch.autograd.Function]) -> Kernel:
    op, group = shard.op, shard.group(DimKind.COLLECTIVE)
    dim = op.arguments["dim"]
    whole = resolve(op.target)
    last = op.arguments["half_to_float" if "half_to_float" in op.arguments else "dtype"]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        # Which type the result has is torch's to say: autocast has lists of its own for each device.
        dtype = whole(x.new_empty(1), 0, last).dtype
        return (function.apply(x, dim, dtype, group),)

    return run


def exponentials(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """exp(x - its maxima), the maxima, and the sums of the exponentials.

    Maxima of rows that are all -inf, which masks leave on some shards, count as the lowest finite number.
    """
    top = x.amax(dim, keepdim=True).clamp_(min=torch.finfo(x.dtype).min)
    raised = (x - top).exp_()
    return raised, top, raised.sum(dim, keepdim=True)


def common_scale(top: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The maxima over all members, and the sums of exponentials around them; members are the first dim."""
    highest = top.amax(0)
    return highest, (total * (top - highest).exp_()).sum(0)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, dtype: torch.dtype, group: Group) -> Tensor:
        raised, top, total = exponentials(x.to(statistics_dtype(x.dtype)), dim)
        highest, whole = common_scale(*gathered(torch.stack([top, total]), group).unbind(1))
        result = raised.mul_((top - highest).exp_().div_(whole)).to(dtype)
        ctx.save_for_backward(result)
        ctx.dim, ctx.group, ctx.given = dim, group, x.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (result,) = ctx.saved_tensors
        weighted = result.to(statistics_dtype(result.dtype)) * gradients[0]
        total = summed(weighted.sum(ctx.dim, keepdim=True), ctx.group)
        return weighted.sub_(result * total).to(ctx.given), None, None, None


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, dtype: torch.dtype, group: Group) -> Tensor:
        values = x.to(statistics_dtype(x.dtype))
        _, top, total = exponentials(values, dim)
        highest, whole = common_scale(*gathered(torch.stack([top, total]), group).unbind(1))
        result = (values - highest).sub_(whole.log_()).to(dtype)
        ctx.save_for_backward(result)
        ctx.dim, ctx.group, ctx.given = dim, group, x.dtype
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (result,) = ctx.saved_tensors
        gradient = gradients[0].to(statistics_dtype(result.dtype))
        total = summed(gradient.sum(ctx.dim, keepdim=True), ctx.group)
        found = torch.sub(gradient, result.to(gradient.dtype).exp().mul_(total))
        return found.to(ctx.given), None, None, None
