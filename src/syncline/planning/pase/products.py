"""Layers that multiply matrices: linear, einsum, convolution, embedding, attention, recurrent cells."""

from __future__ import annotations

from collections.abc import Sequence

from syncline.graph import IterationSpace, Op
from syncline.graph.space import DimKind
from syncline.planning.pase.layer import LayerDim, LayerKind, Nest, Placement, nest_of
from syncline.planning.pase.terms import Gemm, Recurrence, Softmax

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_POINTWISE_OF_A_CELL = 3
LAYERS, STEPS, BATCH, UNITS, INPUTS = range(5)
"""The dims of a recurrent layer: (layers, steps, batch, N, K), of which steps cannot be split."""

Shapes = Sequence[tuple[int, ...]]


def contraction(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """A product of two tensors: batch dims are in both and in the output, K in both only, M and N in one."""
    first, second = factors_of(space)
    gemm = _gemm(space, _dims_of(space, first), _dims_of(space, second))
    return nest_of(space, LayerKind.LINEAR, [gemm])


def factors_of(space: IterationSpace) -> list[int]:
    """The inputs that are multiplied: all but a bias."""
    return [position for position, operand in enumerate(space.inputs) if not operand.once]


def _dims_of(space: IterationSpace, position: int) -> set[int]:
    return {dim for dims in space.inputs[position].dims for dim in dims}


def _gemm(space: IterationSpace, left: set[int], right: set[int]) -> Gemm:
    dims = range(len(space.dims))
    given = {dim for dims in space.outputs[0].dims for dim in dims}
    # Chunks are outputs too, one beside the other.
    given |= {dim for dim in dims if space.dims[dim].kind is DimKind.WHOLE}
    return Gemm(
        m=tuple(dim for dim in dims if dim in given and dim not in right),
        n=tuple(dim for dim in dims if dim in given and dim not in left),
        k=tuple(dim for dim in dims if dim not in given),
        batch=tuple(dim for dim in dims if dim in given and dim in left and dim in right),
    )


def embedding(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """The product of a one-hot (rows, V) and the table (V, D), in full, as the paper's code has it."""
    table = _dims_of(space, 0)
    given = {dim for dims in space.outputs[0].dims for dim in dims}
    one_hot = {dim for dim in range(len(space.dims)) if dim not in table or dim not in given}
    return nest_of(space, LayerKind.EMBEDDING, [_gemm(space, one_hot, table)])


def convolution(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """A product with M = batch · positions, N = output channels, K = input channels · window.

    Groups are batch dims. Positions are never split, in the paper neither: there is no halo.
    """
    transposed = "transpose" in op.target or bool(op.arguments.get("transposed"))
    positions = "i" if transposed else "o"
    gemm = Gemm(
        m=_lettered(space, f"b{positions}"),
        n=_lettered(space, "n"),
        k=_lettered(space, "ck"),
        batch=_lettered(space, "g"),
    )
    return nest_of(space, LayerKind.CONVOLUTION, [gemm], whole=_lettered(space, "io"))


def _lettered(space: IterationSpace, letters: str) -> tuple[int, ...]:
    """The dims whose names are one of these letters and a number."""
    return tuple(index for index, dim in enumerate(space.dims) if dim.name[0] in letters)


def attention(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """The einsums that it is made of: q kᵀ over the head's width, softmax over the keys, times v.

    Both products have one configuration, so the widths of a head stay whole.
    """
    named = {dim.name: index for index, dim in enumerate(space.dims)}
    queries, keys = _named(named, "s"), _named(named, "t")
    widths = (*_named(named, "e"), *_named(named, "f"))
    heads = tuple(index for index in named.values() if index not in (*queries, *keys, *widths))
    terms = (
        Gemm(queries, keys, _named(named, "e"), heads),
        Softmax((*heads, *queries), keys),
        Gemm(queries, _named(named, "f"), keys, heads),
    )
    return nest_of(space, LayerKind.ATTENTION, terms, whole=widths)


def _named(named: dict[str, int], name: str) -> tuple[int, ...]:
    return (named[name],) if name in named else ()


def recurrent(op: Op, space: IterationSpace, shapes: Shapes) -> Nest:
    """Layers of cells as one: a product with batch = layers, M = steps · batch, N = gates · units.

    K are the inputs and the units of a cell, on average over the layers. Splitting layers divides the cost,
    as a perfect wavefront would.
    """
    kind = op.target.split(".")[1]
    layers, ways = op.arguments["num_layers"], 2 if op.arguments["bidirectional"] else 1
    states = 2 if kind == "lstm" else 1
    rows = (BATCH, STEPS) if op.arguments["batch_first"] else (STEPS, BATCH)
    extents = dict(zip(rows, shapes[0], strict=False))
    units = shapes[1][-1]
    k_times = (shapes[0][-1] / units + ways * (layers - 1)) / layers + 1.0
    state: Placement = ((LAYERS,), (BATCH,), (UNITS,))
    weights: list[Placement] = [((),) * len(shape) for shape in shapes[1 + states :]]
    return Nest(
        kind=LayerKind.RECURRENT,
        dims=(
            LayerDim("layers", layers),
            LayerDim("steps", extents[STEPS], splittable=False),
            LayerDim("batch", extents[BATCH]),
            LayerDim("n", units),
            LayerDim("k", units),
        ),
        inputs=(((rows[0],), (rows[1],), (INPUTS,)), *[state] * states, *weights),
        outputs=(((rows[0],), (rows[1],), (UNITS,)), *[state] * states),
        terms=(
            Gemm(
                m=(STEPS, BATCH),
                n=(UNITS,),
                k=(INPUTS,),
                batch=(LAYERS,),
                n_times=_GATES[kind] * ways,
                k_times=k_times,
                pointwise=_POINTWISE_OF_A_CELL,
            ),
            Recurrence(steps=(LAYERS, STEPS), batch=(BATCH,), n=(UNITS,), k=(INPUTS,)),
        ),
    )
