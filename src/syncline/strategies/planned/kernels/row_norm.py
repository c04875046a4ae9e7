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
        result, mean, scale = (_centred if norm.centred else _scaled)(values, norm)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.norm = norm
        if weight is not None:
            result.mul_(weight)
        if bias is not None:
            result.add_(bias)
        return result.to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """With g the gradient times the weights, a the scale and m the mean of a row of N elements:

            dx = a g + b x + c,   b = (m Σg - Σgx) a³ / N,   c = -b m - a Σg / N

        torch's own backward finds the sums over this shard alone, so what b and c lack is added.
        """
        x, weight, mean, scale = ctx.saved_tensors
        norm: _Norm = ctx.norm
        gradient, values = gradients[0].to(scale.dtype).contiguous(), x.to(scale.dtype)
        weights = None if weight is None else weight.to(scale.dtype)
        own = torch.stack([_weighted_sum(gradient, weights), _weighted_sum(gradient * values, weights)])
        finish = start_sum(own.clone(), norm.group)
        # While the sums travel, all that needs none of them.
        found, for_weight, for_bias = torch.ops.aten.native_layer_norm_backward(
            gradient, values, [x.shape[1]], mean, scale, weights, weights, list(ctx.needs_input_grad[:3])
        )
        affine = [
            None if one is None else one.to(x.dtype if weight is None else weight.dtype)
            for one in (for_weight, for_bias)
        ]
        sums = finish()
        if not ctx.needs_input_grad[0]:
            return None, *affine, None, None
        slope, level = _coefficients(sums, mean, scale, norm.count)
        own_slope, own_level = _coefficients(own, mean, scale, x.shape[1])
        found.addcmul_(values, slope - own_slope)
        found.sub_(own_level if not norm.centred else own_level - level)
        return found.to(x.dtype), *affine, None, None


def _centred(values: Tensor, norm: _Norm) -> tuple[Tensor, Tensor, Tensor]:
    """Rows less their mean and over their spread, that mean, and one over the spread."""
    own_mean = values.mean(1, keepdim=True)
    result = values - own_mean
    mean, squares = combined_moments(own_mean, _squares(result), values.shape[1], norm.group)
    scale = (squares / norm.count).add_(norm.eps).rsqrt_()
    return result.sub_(mean - own_mean).mul_(scale), mean, scale


def _scaled(values: Tensor, norm: _Norm) -> tuple[Tensor, Tensor, Tensor]:
    """Rows over their root mean square, zeros for the mean, and one over that root."""
    squares = summed(_squares(values), norm.group)
    scale = (squares / norm.count).add_(norm.eps).rsqrt_()
    return values * scale, torch.zeros_like(scale), scale


def _squares(x: Tensor) -> Tensor:
    """The sum of squares of each row."""
    return torch.linalg.vector_norm(x, dim=1, keepdim=True).square_()


def _weighted_sum(rows: Tensor, weights: Tensor | None) -> Tensor:
    return (rows.sum(1) if weights is None else rows @ weights).unsqueeze(1)


def _coefficients(sums: Tensor, mean: Tensor, scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """b and c of the backward pass."""
    plain, with_x = sums
    slope = (mean * plain - with_x) * scale.pow(3) / count
    return slope, -slope * mean - scale * plain / count
