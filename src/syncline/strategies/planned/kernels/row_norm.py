"""Layer and RMS norm over dims that are split: one exchange of moments in each direction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from syncline.graph.opgraph import resolve
from syncline.graph.space import DimKind
from syncline.strategies.planned.kernels.exchange import (
    Group,
    combined_moments,
    start_sum,
    statistics_dtype,
    summed,
)
from syncline.strategies.planned.kernels.shard import Kernel, OpShard


@dataclass(frozen=True, slots=True)
class _Norm:
    """What is normalised, and how."""

    count: int
    """The elements of a whole row."""
    eps: float
    centred: bool
    """Layer norm subtracts the mean, RMS norm does not."""
    group: Group


def layer_norm(shard: OpShard) -> Kernel:
    """The kernel of `layer_norm`."""
    return _kernel(shard, centred=True)


def rms_norm(shard: OpShard) -> Kernel:
    """The kernel of `rms_norm`."""
    return _kernel(shard, centred=False)


def _kernel(shard: OpShard, *, centred: bool) -> Kernel:
    op = shard.op
    shape = op.arguments["normalized_shape"]
    group = shard.group(DimKind.COLLECTIVE)
    whole = resolve(op.target)

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = shard.fill(inputs)
        x, weight, bias = given["input"], given["weight"], given.get("bias")
        eps = op.arguments["eps"]
        if eps is None:
            eps = torch.finfo(statistics_dtype(x.dtype)).eps
        norm = _Norm(math.prod(shape), eps, centred, group)
        # Which type the result has is torch's to say: autocast has lists of its own for each device.
        dtype = whole(x.new_empty((1, 1)), [1]).dtype
        own = math.prod(x.shape[x.ndim - len(shape) :])
        flat = [None if one is None else one.reshape(own) for one in (weight, bias)]
        return (_Normalise.apply(x.reshape(-1, own), *flat, norm, dtype).view(x.shape),)

    return run


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: _Norm, dtype: torch.dtype
    ) -> Tensor:
        values = x.to(statistics_dtype(x.dtype))
        mean = None
        if norm.centred:
            own_mean = values.mean(1, keepdim=True)
            result = values - own_mean
            mean, squares = combined_moments(own_mean, _squares(result), result.shape[1], norm.group)
            scale = (squares / norm.count).add_(norm.eps).rsqrt_()
            result.sub_(mean - own_mean).mul_(scale)
        else:
            scale = (summed(_squares(values), norm.group) / norm.count).add_(norm.eps).rsqrt_()
            result = values * scale
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.norm = norm
        if weight is not None:
            result.mul_(weight)
        if bias is not None:
            result.add_(bias)
        return result.to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, scale = ctx.saved_tensors
        norm: _Norm = ctx.norm
        gradient, values = gradients[0].to(scale.dtype), x.to(scale.dtype)
        normed = values * scale if mean is None else (values - mean).mul_(scale)
        sent = gradient if weight is None else gradient * weight
        sums = [(sent * normed).sum(1, keepdim=True)]
        if norm.centred:
            sums.append(sent.sum(1, keepdim=True))
        finish = start_sum(torch.stack(sums), norm.group)
        # While the sums travel, the gradients that need none of them.
        for_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        for_weight = (gradient * normed).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        sums = finish().div_(norm.count)
        if not ctx.needs_input_grad[0]:
            return None, for_weight, for_bias, None, None
        found = torch.sub(sent, normed.mul_(sums[0]))
        if norm.centred:
            found.sub_(sums[1])
        return found.mul_(scale).to(x.dtype), for_weight, for_bias, None, None


def _squares(x: Tensor) -> Tensor:
    """The sum of squares of each row."""
    return torch.linalg.vector_norm(x, dim=1, keepdim=True).square_()
