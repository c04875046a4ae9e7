"""Which formulas of the paper each kind of op is priced by.

Rules take all dims to be splittable that the paper can split, whatever the executor can: the paper's
setting prices strategies, it does not run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from syncline.graph import DimKind, IterationSpace, Op
from syncline.planning.pase.layer import LayerKind, Nest, nest_of
from syncline.planning.pase.products import (
    attention,
    contraction,
    convolution,
    embedding,
    factors_of,
    recurrent,
)
from syncline.planning.pase.terms import (
    ChannelNorm,
    CrossEntropy,
    Elementwise,
    Norm,
    Pooling,
    Reduction,
    Softmax,
)

BatchNorm: TypeAlias = Literal["paper", "channel"]
Shapes: TypeAlias = Sequence[tuple[int, ...]]
Rule: TypeAlias = Callable[[Op, IterationSpace, Shapes], Nest]
"""Takes an op, its iteration space and the shapes of its inputs."""


def describe(op: Op, space: IterationSpace, shapes: Shapes, batch_norm: BatchNorm) -> Nest:
    """The loop nest and the cost of an op.

    Args:
        op: of the graph.
        space: its iteration space, in which merged dims may have been taken apart.
        shapes: of its inputs.
        batch_norm: whether batch norm is priced as in the paper's code or by channel.
    """
    name = kind_name(op)
    if name == "batch_norm" and batch_norm == "channel":
        return _channel_norm(space)
    if name in _FREE:
        return _movement(op, space, shapes)
    rule = _RULES.get(name, _unknown) if _fits(op, space) else _unknown
    return rule(op, space, shapes)


def _fits(op: Op, space: IterationSpace) -> bool:
    """Whether the op is called as its rule expects."""
    rule = _RULES.get(kind_name(op))
    if rule is contraction and len(factors_of(space)) != 2:
        return False
    if rule is recurrent and not op.target.endswith(".input"):
        return False
    return space.ruled


def kind_name(op: Op) -> str:
    """The name of the ATen op, without overload."""
    return op.target.split(".")[1]


def is_priced(op: Op) -> bool:
    """Whether the op has a formula of its own, so that it is always a layer."""
    return kind_name(op) in _RULES


def is_free(op: Op) -> bool:
    """Whether the op costs nothing where it is fused: it only moves or drops elements."""
    return op.is_view or kind_name(op) in _FREE


def _all(space: IterationSpace) -> tuple[int, ...]:
    return tuple(range(len(space.dims)))


def _split_by(space: IterationSpace, *kinds: DimKind) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims that are not of these kinds, and those that are."""
    chosen = tuple(index for index in _all(space) if space.dims[index].kind in kinds)
    return tuple(index for index in _all(space) if index not in chosen), chosen


def _norm(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """Layer, RMS, group and instance norm: the axis is all that is normalised over."""
    rows, axis = _split_by(space, DimKind.COLLECTIVE, DimKind.WHOLE)
    return nest_of(space, LayerKind.OTHER, [Norm(rows, axis)])


def _batch_norm(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """As in the paper's code: the norm over the batch dim alone."""
    batch = space.inputs[0].dims[0]
    rows = tuple(dim for dim in _all(space) if dim not in batch)
    return nest_of(space, LayerKind.OTHER, [Norm(rows, batch)])


def _channel_norm(space: IterationSpace) -> Nest:
    channels = space.inputs[0].dims[1]
    others = tuple(dim for dim in _all(space) if dim not in channels)
    return nest_of(space, LayerKind.OTHER, [ChannelNorm(channels, others)])


def _softmax(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    rows, axis = _split_by(space, DimKind.COLLECTIVE)
    return nest_of(space, LayerKind.OTHER, [Softmax(rows, axis)])


def _class_loss(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    rows, classes = _split_by(space, DimKind.COLLECTIVE, DimKind.WHOLE)
    return nest_of(space, LayerKind.LOSS, [CrossEntropy(rows, classes)])


def _elementwise(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    return nest_of(space, LayerKind.ELEMENTWISE, [Elementwise(_all(space))])


def _reduction(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    kept, reduced = _split_by(space, DimKind.SUM)
    return nest_of(space, LayerKind.OTHER, [Reduction(kept, reduced)])


def _movement(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """Concatenation, slices and their kin cost nothing; the dim that they work along is whole."""
    _, whole = _split_by(space, DimKind.WHOLE)
    return nest_of(space, LayerKind.OTHER, whole=whole)


def _unknown(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """An op that the paper has not: one FLOP for each element that it gives; only free dims are split."""
    if all(dim.kind is DimKind.FREE for dim in space.dims):
        return _elementwise(op, space, shapes)
    _, whole = _split_by(space, DimKind.SUM, DimKind.COLLECTIVE, DimKind.WHOLE)
    given = {dim for dims in space.outputs[0].dims for dim in dims}
    return nest_of(space, LayerKind.OTHER, [Elementwise(tuple(sorted(given)))], whole=whole)


def _pooling(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """Windows slide over the last dims; the input is cut where the output is."""
    count = int(kind_name(op).split("pool")[1][0])
    outs = space.outputs[0].dims
    sizes = shapes[0][-count:]
    windows = _windows(op, sizes, [_size(space, dims) for dims in outs[-count:]])
    rows = tuple(dim for dims in outs[:-count] for dim in dims)
    positions = tuple(
        (dims[0] if dims else None, size, window)
        for dims, size, window in zip(outs[-count:], sizes, windows, strict=True)
    )
    inside = {dim for dims in space.inputs[0].dims[-count:] for dim in dims}
    whole = nest_of(space, LayerKind.OTHER, [Pooling(rows, positions)], whole=sorted(inside))
    return replace(whole, inputs=((*space.inputs[0].dims[:-count], *outs[-count:]),))


def _size(space: IterationSpace, dims: tuple[int, ...]) -> int:
    return space.sizes[dims[0]] if dims else 1


def _windows(op: Op, sizes: Sequence[int], outputs: Sequence[int]) -> list[int]:
    given = op.arguments.get("kernel_size")
    if given is None:
        return [-(-size // output) for size, output in zip(sizes, outputs, strict=True)]
    listed = list(given) if isinstance(given, (tuple, list)) else [given]
    return listed * len(sizes) if len(listed) == 1 else listed


_FREE = frozenset({"reshape", "permute", "to", "detach", "dropout", "alpha_dropout", "feature_dropout"})

_POOLS = [f"{kind}_pool{count}d" for kind in ("max", "avg", "adaptive_avg") for count in (1, 2, 3)]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("linear", "mm", "bmm", "mv", "matmul", "addmm", "baddbmm", "einsum"), contraction),
    **dict.fromkeys(("linear_chunks", "addmm_chunks"), contraction),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), convolution),
    "embedding": embedding,
    "scaled_dot_product_attention": attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "instance_norm"), _norm),
    "batch_norm": _batch_norm,
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd"), _class_loss),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"), _elementwise),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), _elementwise),
    **dict.fromkeys(("mean", "sum"), _reduction),
    **dict.fromkeys(_POOLS, _pooling),
    **dict.fromkeys(("max_pool2d_with_indices", "adaptive_max_pool2d"), _movement),
    **dict.fromkeys(("cat", "stack", "split_with_sizes", "unbind", "select", "slice"), _movement),
    **dict.fromkeys(("select_scatter", "slice_scatter", "pad", "constant_pad_nd"), _movement),
    **dict.fromkeys(("expand", "repeat", "repeat_interleave", "flip", "roll"), _movement),
    **dict.fromkeys(("index", "index_select", "gather"), _movement),
}
