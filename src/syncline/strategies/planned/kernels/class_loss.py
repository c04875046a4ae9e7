"""Cross entropy and negative log likelihood, with classes split, samples split, or both.

Shards of the classes gather, for each sample, the maximum, the sum of exponentials and the target's logit;
shards of the samples add up how many targets (or how much class weight) the mean is over. Nothing as large
as the logits is made forward; backward makes their gradient alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from syncline.graph.opgraph import TensorRef, resolve
from syncline.graph.shards import Part
from syncline.graph.space import DimKind
from syncline.strategies.planned.kernels.exchange import (
    Group,
    gathered,
    start_sum,
    statistics_dtype,
    summed,
)
from syncline.strategies.planned.kernels.shard import EarlyStart, Kernel, OpShard
from syncline.strategies.planned.kernels.softmax import common_scale, exponentials

_NONE, _MEAN, _SUM = 0, 1, 2
_FEW_ELEMENTS = 2**20
"""Up to so many logits, all classes of each sample, torch's own loss is faster; it makes them once more."""
_BLOCK_ELEMENTS = {"cpu": 2**18}
"""Logits are worked on in blocks that stay in a core's cache; other devices want large ones."""
_LARGE_BLOCK_ELEMENTS = 2**26


@dataclass(frozen=True, slots=True)
class _Loss:
    """What the loss is, and which share of it is here."""

    of_logits: bool
    """Cross entropy; otherwise log-probabilities are given."""
    classes: int
    """How many there are in all."""
    own: Part
    """Those that this shard has."""
    ignored: int
    smoothing: float
    reduction: int
    class_group: Group
    sample_group: Group


def class_loss(shard: OpShard) -> Kernel:
    """The kernel of `cross_entropy_loss`, `nll_loss` and `nll_loss_nd`."""
    op, arguments = shard.op, shard.op.arguments
    own = shard.part("c")
    shape = op.space.inputs[0].shape(op.space.sizes)
    loss = _Loss(
        of_logits="cross_entropy" in op.target,
        classes=shape[min(1, len(shape) - 1)],
        own=own,
        ignored=arguments["ignore_index"],
        smoothing=arguments.get("label_smoothing", 0.0),
        reduction=arguments["reduction"],
        class_group=shard.group(DimKind.COLLECTIVE),
        sample_group=shard.group(DimKind.SUM) if arguments["reduction"] == _MEAN else None,
    )
    whole = resolve(op.target)

    def run(*inputs: Any) -> tuple[Tensor, ...]:
        given = shard.fill(inputs)
        counted = inputs[len(op.inputs)] if len(inputs) > len(op.inputs) else None
        x, target, weight = given["self"], given["target"], given["weight"]
        if loss.class_group is None and weight is None and x.numel() <= _FEW_ELEMENTS:
            return (_by_torch(whole, given, loss, counted),)
        # Which type the result has is torch's to say: autocast has lists of its own for each device.
        dtype = whole(x.new_zeros((1, 1)), target.new_zeros(1)).dtype
        if x.ndim > 1:
            return (_ClassLoss.apply(x, target, weight, loss, dtype, counted),)
        result = _ClassLoss.apply(x.unsqueeze(0), target.reshape(1), weight, loss, dtype, counted)
        return (result.reshape(()),)

    return run


def _by_torch(
    whole: Callable[..., Tensor], given: dict[str, Any], loss: _Loss, counted: Callable[[], Tensor] | None
) -> Tensor:
    if loss.reduction != _MEAN:
        return whole(**given)
    counted = counted or _start_count(given["target"], loss.ignored, loss.sample_group)
    return whole(**given | {"reduction": _SUM}) / counted()


def start_count(shard: OpShard) -> EarlyStart | None:
    """Begins to add up how many targets the mean is over: the targets are known before the logits are.

    With class weights or without a mean over shards of the samples there is nothing to add up so early.
    """
    arguments = shard.op.arguments
    group = shard.group(DimKind.SUM)
    if arguments["reduction"] != _MEAN or arguments["weight"] is not None or group is None:
        return None
    inputs = [name for name, value in arguments.items() if isinstance(value, TensorRef)]
    ignored = arguments["ignore_index"]
    return EarlyStart((inputs.index("target"),), lambda target: _start_count(target, ignored, group))


def _start_count(target: Tensor, ignored: int, group: Group) -> Callable[[], Tensor]:
    return start_sum((target != ignored).sum(), group)


class _ClassLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        loss: _Loss,
        dtype: torch.dtype,
        counted: Callable[[], Tensor] | None,
    ) -> Tensor:
        kind = statistics_dtype(x.dtype)
        weight = None if weight is None else weight.detach().to(kind)
        share = (target != loss.ignored).to(kind)
        averaged = loss.reduction == _MEAN
        if counted is None and averaged and weight is None:
            counted = _start_count(target, loss.ignored, loss.sample_group)
        rows = _exchanged(x.detach(), target, weight, loss)
        ctx.smooth_share, ctx.weight_sum = share, _weight_sum(weight, loss)
        if weight is not None:
            share = share * rows.target_weight
            counted = start_sum(share.sum(), loss.sample_group) if averaged else None
        losses = (rows.normaliser - rows.picked).mul_(1 - loss.smoothing).mul_(share)
        if loss.smoothing:
            smooth = (rows.normaliser * ctx.weight_sum).sub_(rows.weighted_sum).mul_(ctx.smooth_share)
            losses.add_(smooth, alpha=loss.smoothing / loss.classes)
        # Rows that are ignored may be anything, even infinite.
        losses.masked_fill_(target == loss.ignored, 0)
        ctx.count = None if counted is None else counted().to(kind)
        ctx.loss, ctx.weight, ctx.share = loss, weight, share
        ctx.save_for_backward(x, target, rows.top, rows.total)
        if loss.reduction == _NONE:
            return losses.to(dtype)
        total = losses.sum()
        return (total if ctx.count is None else total / ctx.count).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, target, top, total = ctx.saved_tensors
        loss: _Loss = ctx.loss
        gradient = gradients[0].to(ctx.share.dtype)
        if ctx.count is not None:
            gradient = gradient / ctx.count
        on_target = gradient * ctx.share * (1 - loss.smoothing)
        on_all = gradient * ctx.smooth_share * (loss.smoothing / loss.classes)
        index, inside = _own_index(target, loss.own)
        removed = (on_target * inside).neg_()
        if not loss.of_logits:
            found = torch.zeros_like(x)
            return (
                found.scatter_(1, index.unsqueeze(1), removed.unsqueeze(1).to(x.dtype)),
                *(None,) * 5,
            )
        factor = (on_target + on_all * ctx.weight_sum) / total
        found = torch.empty_like(x)
        for span in _spans(x):
            block = (x[span] - top[span].unsqueeze(1)).exp_().mul_(factor[span].unsqueeze(1))
            if loss.smoothing:
                block.sub_(_by_class(ctx.weight, block) * on_all[span].unsqueeze(1))
            block.scatter_add_(1, index[span].unsqueeze(1), removed[span].unsqueeze(1))
            found[span] = block
        return found, *(None,) * 5


@dataclass(slots=True)
class _Rows:
    """What is known of each sample once the shards of the classes have talked."""

    picked: Tensor
    """The target's logit or log-probability."""
    top: Tensor
    total: Tensor
    """The largest logit, and the sum of exponentials around it."""
    normaliser: Tensor
    """The logarithm of the sum of all exponentials; zero for log-probabilities."""
    target_weight: Tensor
    weighted_sum: Tensor
    """Of all logits, by class weight; only for label smoothing."""


def _exchanged(x: Tensor, target: Tensor, weight: Tensor | None, loss: _Loss) -> _Rows:
    index, inside = _own_index(target, loss.own)
    picked = x.gather(1, index.unsqueeze(1)).squeeze(1)
    own = [picked.to(statistics_dtype(x.dtype)).masked_fill_(~inside, 0)]
    if weight is not None:
        own.append(weight[index].mul_(inside))
    if loss.smoothing:
        own.append(_weighted_sum(x, weight))
    if loss.of_logits:
        own += _own_exponentials(x)
    together = gathered(torch.stack(own), loss.class_group)
    # Maxima and sums, if any, come last.
    sums = list(together[:, : 1 + (weight is not None) + (loss.smoothing > 0)].sum(0))
    zero = torch.zeros_like(sums[0])
    top, total = common_scale(together[:, -2], together[:, -1]) if loss.of_logits else (zero, zero)
    normaliser = top + total.log() if loss.of_logits else zero
    target_weight = sums[1] if weight is not None else zero
    return _Rows(sums[0], top, total, normaliser, target_weight, sums[-1])


def _own_exponentials(x: Tensor) -> list[Tensor]:
    """The largest of this shard's logits of each sample, and the sum of exponentials around it."""
    kind = statistics_dtype(x.dtype)
    shape = (x.shape[0], *x.shape[2:])
    top, total = x.new_empty(shape, dtype=kind), x.new_empty(shape, dtype=kind)
    for span in _spans(x):
        _, highest, sums = exponentials(x[span].to(kind), 1)
        top[span], total[span] = highest.squeeze(1), sums.squeeze(1)
    return [top, total]


def _weighted_sum(x: Tensor, weight: Tensor | None) -> Tensor:
    kind = statistics_dtype(x.dtype)
    if weight is None:
        return x.sum(1, dtype=kind)
    return torch.tensordot(x.movedim(1, -1).to(kind), weight, 1)


def _weight_sum(weight: Tensor | None, loss: _Loss) -> Tensor | float:
    """Over all classes; without weights each counts one."""
    if weight is None or not loss.smoothing:
        return float(loss.classes)
    return summed(weight.sum(), loss.class_group)


def _by_class(weight: Tensor | None, block: Tensor) -> Tensor:
    one = block.new_ones(()) if weight is None else weight
    return one.view(1, -1, *[1] * (block.ndim - 2))


def _own_index(target: Tensor, own: Part) -> tuple[Tensor, Tensor]:
    """Where the targets are among this shard's classes, and which of them are there at all."""
    inside = (target >= own.start) & (target < own.stop)
    return (target - own.start).masked_fill_(~inside, 0), inside


def _spans(x: Tensor) -> Iterator[slice]:
    """Blocks of samples."""
    elements = _BLOCK_ELEMENTS.get(x.device.type, _LARGE_BLOCK_ELEMENTS)
    step = max(1, elements * x.shape[0] // max(1, x.numel()))
    return (slice(start, start + step) for start in range(0, x.shape[0], step))
