"""Which kernel runs which op."""

from __future__ import annotations

from collections.abc import Callable

from syncline.strategies.planned.kernels.batch_norm import batch_norm
from syncline.strategies.planned.kernels.class_loss import class_loss, start_count
from syncline.strategies.planned.kernels.recurrent import recurrent
from syncline.strategies.planned.kernels.row_norm import layer_norm, rms_norm
from syncline.strategies.planned.kernels.shard import EarlyStart, Kernel, OpShard
from syncline.strategies.planned.kernels.softmax import log_softmax, softmax

_CLASS_LOSSES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd")
_KERNELS: dict[str, Callable[[OpShard], Kernel]] = {
    "softmax": softmax,
    "_softmax": softmax,
    "log_softmax": log_softmax,
    "_log_softmax": log_softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    **dict.fromkeys(_CLASS_LOSSES, class_loss),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
}


def exchange_kernel(shard: OpShard) -> Kernel:
    """What runs this rank's share of an op whose ranks have to exchange something inside it.

    By the rule of `graph.space`, an input that lacks a split dim gets this rank's summand of its gradient,
    and an output that lacks a split `sum` dim is this rank's summand. An output that lacks a split
    `collective` dim is the same on all its ranks, and so must be the gradient that comes back.

    Raises:
        NotImplementedError: No kernel exchanges for this op.
    """
    kernel = _KERNELS.get(shard.op.target.split(".")[1])
    if kernel is None:
        raise NotImplementedError(f"{shard.op.name}: {shard.op.target} has no kernel for split dims")
    return kernel(shard)


def early_start(shard: OpShard) -> EarlyStart | None:
    """What the kernel of an op can begin before its turn, if anything."""
    return start_count(shard) if shard.op.target.split(".")[1] in _CLASS_LOSSES else None
