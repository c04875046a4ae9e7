"""Batch norm while training, with the batch split: the statistics are those of the whole batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from syncline.graph.space import DimKind
from syncline.strategies.planned.kernels.exchange import Group, combined_moments, statistics_dtype, summed
from syncline.strategies.planned.kernels.shard import Kernel, OpShard


@dataclass(frozen=True, slots=True)
class _Batch:
    count: int
    """How many elements of a channel the whole batch has."""
    eps: float
    group: Group


def batch_norm(shard: OpShard) -> Kernel:
    """The kernel of `batch_norm`; it updates the running statistics in place, as torch does."""
    arguments, space = shard.op.arguments, shard.op.space
    shape = space.inputs[0].shape(space.sizes)
    batch = _Batch(math.prod(shape) // shape[1], arguments["eps"], shard.group(DimKind.COLLECTIVE))

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = shard.fill(inputs)
        x = given["input"]
        mean, variance = _statistics(x.detach(), batch)
        with torch.no_grad():
            if given["running_mean"] is not None:
                unbiased = variance * (batch.count / (batch.count - 1))
                given["running_mean"].lerp_(mean.to(given["running_mean"].dtype), arguments["momentum"])
                given["running_var"].lerp_(unbiased.to(given["running_var"].dtype), arguments["momentum"])
        affine = [None if one is None else one.to(mean.dtype) for one in (given["weight"], given["bias"])]
        return (_BatchNorm.apply(x, *affine, mean, variance, batch),)

    return run


def _statistics(x: Tensor, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, over the whole batch."""
    values = x.to(statistics_dtype(x.dtype))
    count = values.numel() // values.shape[1]
    mean, variance = torch.batch_norm_update_stats(values, None, None, 0.0)
    mean, squares = combined_moments(mean, variance * count, count, batch.group)
    return mean, squares / batch.count


class _BatchNorm(torch.autograd.Function):
    """Normalises by given statistics; its gradient includes what flows through the statistics."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        batch: _Batch,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.batch = batch
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=batch.eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight, mean, variance = ctx.saved_tensors
        batch: _Batch = ctx.batch
        # As in evaluation, where statistics are constants: the sums for weight and bias come with it.
        found, for_weight, for_bias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, weight, mean, variance, None, None, False, batch.eps, [True, True, True]
        )
        if ctx.needs_input_grad[0]:
            along, level = summed(torch.stack([for_weight, for_bias]), batch.group)
            scale = (variance + batch.eps).rsqrt_().div_(-batch.count)
            if weight is not None:
                scale.mul_(weight)
            # -scale × (Σ gradient + normalised x × Σ gradient × normalised x), itself a batch norm.
            owed = F.batch_norm(
                x, mean, variance, scale * along, scale * level, training=False, eps=batch.eps
            )
            found.add_(owed)
        wanted = ctx.needs_input_grad
        return (
            found if wanted[0] else None,
            for_weight if wanted[1] else None,
            for_bias if wanted[2] else None,
            None,
            None,
            None,
        )
