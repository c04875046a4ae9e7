"""What people do without a search: strategies to compare with, as shardings of the same graph.

Each gives every op an assignment of axes to dims. Where a dim cannot take an axis (the parts would not be
equal, or the op lacks the dim), the op is repeated over that axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from syncline.graph.opgraph import Op, OpGraph
from syncline.graph.space import DimKind
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import UNUSED
from syncline.planning.roles import batch_dims, splittable_dims
from syncline.planning.tables import Tables

Shardings = dict[int, tuple[int, ...]]
"""An assignment for each op, by its id."""

_PRODUCTS = ("linear", "addmm", "mm", "matmul", "linear_chunks", "addmm_chunks")


def data_parallel(graph: OpGraph, axes: SearchAxes) -> Shardings:
    """Every op is split over the batch, over all axes that it has room for."""
    batch = batch_dims(graph)
    everywhere = range(len(axes.axes))
    return {op.id: _fit(graph, op, axes, [(batch.get(op.id), everywhere)]) for op in graph.ops}


def tensor_parallel(graph: OpGraph, axes: SearchAxes, model_axes: Sequence[int]) -> Shardings:
    """Megatron's way: the batch over the other axes; over `model_axes` products are split in turn by their
    output and by their input channels, what lies between them follows, and the vocabulary is split too."""
    batch = batch_dims(graph)
    data_axes = [index for index in range(len(axes.axes)) if index not in model_axes]
    cut: dict[int, int] = {}
    shardings: Shardings = {}
    for op in graph.ops:
        dim = _model_dim(op, cut)
        if dim is not None and dim == batch.get(op.id):
            dim = None
        shardings[op.id] = _fit(graph, op, axes, [(batch.get(op.id), data_axes), (dim, model_axes)])
        if dim is not None and any(shardings[op.id][axis] == dim for axis in model_axes):
            _follow(op, dim, cut)
    return shardings


def one_weird_trick(graph: OpGraph, axes: SearchAxes, model_axes: Sequence[int]) -> Shardings:
    """Krizhevsky's: convolutions split over the batch, fully connected layers by their output channels."""
    return _named_dims(graph, axes, model_axes, dict.fromkeys(_PRODUCTS, "n"))


def split_vocabulary(graph: OpGraph, axes: SearchAxes, model_axes: Sequence[int]) -> Shardings:
    """For recurrent language models: the recurrence over the batch, lookup and projection by vocabulary."""
    return _named_dims(graph, axes, model_axes, {"embedding": "v", "linear": "n", "cross_entropy_loss": "c"})


def _named_dims(
    graph: OpGraph, axes: SearchAxes, model_axes: Sequence[int], dims: Mapping[str, str]
) -> Shardings:
    """The ops of some names split over the model axes along these dims, and all else over the batch.

    What is left of an op's result by views and pointwise ops stays split as it was.
    """
    everything = range(len(axes.axes))
    batch = batch_dims(graph)
    cut: dict[int, int] = {}
    shardings: Shardings = {}
    for op in graph.ops:
        dim = _named_dim(op, dims, cut)
        wishes: list[tuple[int | None, Sequence[int]]] = [(dim, model_axes), (batch.get(op.id), everything)]
        shardings[op.id] = _fit(graph, op, axes, wishes)
        if dim is not None and any(shardings[op.id][axis] == dim for axis in model_axes):
            _follow(op, dim, cut)
    return shardings


def _named_dim(op: Op, dims: Mapping[str, str], cut: Mapping[int, int]) -> int | None:
    name = dims.get(_name(op))
    if name is not None:
        return op.space.index(name) if _has(op, name) else None
    carried = None if op.space.flop_terms else _carried_dim(op, cut)
    return carried if carried is not None and op.space.dims[carried].kind is DimKind.FREE else None


def expert(
    graph: OpGraph, axes: SearchAxes, model_axes: Sequence[int] | None = None
) -> tuple[str, Shardings]:
    """The strategy that experts use for this kind of model, and its name.

    Args:
        graph: The model.
        axes: The mesh.
        model_axes: The axes that split the model; by default as experts do it, those inside a node for
            transformers and all of them for others.
    """
    names = {_name(op) for op in graph.ops}
    inner = [index for index, axis in enumerate(axes.axes) if axis.level == 0]
    everything = range(len(axes.axes))
    if "scaled_dot_product_attention" in names or ("softmax" in names and "embedding" in names):
        chosen = inner if model_axes is None else model_axes
        label = "Megatron tensor parallel in a node, data parallel between"
        return label, tensor_parallel(graph, axes, chosen)
    chosen = everything if model_axes is None else model_axes
    if "lstm" in names:
        return "data parallel LSTM, split vocabulary", split_vocabulary(graph, axes, chosen)
    return "one weird trick", one_weird_trick(graph, axes, chosen)


def mesh_masks(tables: Tables, model_axes: Sequence[int]) -> dict[int, np.ndarray]:
    """Which shardings use one uniform mesh: the batch over all axes but `model_axes`, and only there."""
    batch = batch_dims(tables.graph)
    masks = {}
    for index, node in enumerate(tables.nodes):
        if node.op is None or node.assignments is None:
            continue
        rows, dim = node.assignments, batch.get(node.op.id, UNUSED)
        data = np.ones(len(rows), dtype=bool)
        for axis in range(rows.shape[1]):
            if axis in model_axes:
                data &= (rows[:, axis] != dim) | (dim == UNUSED)
            else:
                data &= rows[:, axis] == dim
        masks[index] = data if data.any() else np.ones(len(rows), dtype=bool)
    return masks


def _model_dim(op: Op, cut: dict[int, int]) -> int | None:
    """The dim that the model axes split: that of an input which is cut already, or else a new one."""
    carried = _carried_dim(op, cut)
    if carried is not None:
        return carried
    fresh = {"embedding": "v", **dict.fromkeys(_PRODUCTS, "n")}.get(_name(op))
    return op.space.index(fresh) if fresh and _has(op, fresh) else None


def _carried_dim(op: Op, cut: Mapping[int, int]) -> int | None:
    """The dim of an op along which one of its inputs is cut."""
    for tensor, operand in zip(op.inputs, op.space.inputs, strict=True):
        where = cut.get(tensor)
        if where is not None and operand.dims[where]:
            return operand.dims[where][0]
    return None


def _follow(op: Op, dim: int, cut: dict[int, int]) -> None:
    for tensor, operand in zip(op.outputs, op.space.outputs, strict=True):
        position = operand.position(dim)
        if position is not None and position[1] == 0:
            cut[tensor] = position[0]


def _fit(
    graph: OpGraph, op: Op, axes: SearchAxes, wishes: Sequence[tuple[int | None, Sequence[int]]]
) -> tuple[int, ...]:
    """Gives axes to dims as wished, as far as they can be split evenly."""
    chosen = [UNUSED] * len(axes.axes)
    left = {dim: op.space.dims[dim].size for dim in splittable_dims(graph, op)}
    for dim, wanted in wishes:
        for axis in wanted:
            size = axes.axes[axis].size
            if dim in left and chosen[axis] == UNUSED and left[dim] % size == 0:
                chosen[axis] = dim
                left[dim] //= size
    return tuple(chosen)


def _name(op: Op) -> str:
    return op.target.split(".")[1]


def _has(op: Op, name: str) -> bool:
    return any(dim.name == name for dim in op.space.dims)
