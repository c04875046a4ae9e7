"""Layers that multiply matrices: linear, einsum, convolution, embedding, attention, recurrent cells."""

from __future__ import annotations

from collections.abc import Sequence

from syncline.graph import IterationSpace, Op
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
    given = {dim for dims in space.outputs[0].dims for dim in dims}
    dims = range(len(space.dims))
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
    positions = "i" if transposed or not _has(space, "o") else "o"
    roles: dict[str, list[int]] = {"m": [], "n": [], "k": [], "batch": []}
    whole = []
    for index, dim in enumerate(space.dims):
        letter = dim.name.rstrip("0123456789")
        if letter in ("i", "o"):
            whole.append(index)
        if letter in ("b", positions):
            roles["m"].append(index)
        elif letter in _CONVOLUTION_ROLES:
            roles[_CONVOLUTION_ROLES[letter]].append(index)
    gemm = Gemm(**{role: tuple(dims) for role, dims in roles.items()})
    return nest_of(space, LayerKind.CONVOLUTION, [gemm], whole=whole)


_CONVOLUTION_ROLES = {"n": "n", "c": "k", "k": "k", "g": "batch"}


def _has(space: IterationSpace, letter: str) -> bool:
    return any(dim.name.rstrip("0123456789") == letter for dim in space.dims)


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
    """All layers of cells as one: a product with batch = layers, M = steps · batch, N = gates · units, K.

    K are the units of input and state together. Splitting layers divides the cost, as a perfect wavefront
    would.
    """
    states = 2 if op.target.split(".")[1] == "lstm" else 1
    features, units = shapes[0][-1], shapes[1][-1]
    ways = 2 if op.arguments["bidirectional"] else 1
    batch_first = op.arguments["batch_first"]
    steps, batch = (1, 0) if batch_first else (0, 1)
    return stacked(
        sizes=(op.arguments["num_layers"], shapes[0][steps], shapes[0][batch], units, units),
        gates=_GATES[op.target.split(".")[1]] * ways,
        inputs_per_unit=(features + units) / units,
        batch_first=batch_first,
        tensors=(len(shapes), states),
    )


def stacked(
    *,
    sizes: tuple[int, ...],
    gates: float,
    inputs_per_unit: float,
    batch_first: bool,
    tensors: tuple[int, int],
) -> Nest:
    """The nest of some layers of recurrent cells.

    Args:
        sizes: of layers, steps, batch, N and K.
        gates: N is this many times its size.
        inputs_per_unit: K is this many times its size.
        batch_first: whether the batch comes before the steps in the input.
        tensors: how many the op takes, and how many of them are states.
    """
    names = ("layers", "steps", "batch", "n", "k")
    rows = (BATCH, STEPS) if batch_first else (STEPS, BATCH)
    state: Placement = ((LAYERS,), (BATCH,), (UNITS,))
    taken, states = tensors
    weights: tuple[Placement, ...] = ((),) * (taken - 1 - states)
    return Nest(
        kind=LayerKind.RECURRENT,
        dims=tuple(
            LayerDim(name, size, index != STEPS)
            for index, (name, size) in enumerate(zip(names, sizes, strict=True))
        ),
        inputs=(((rows[0],), (rows[1],), (INPUTS,)), *[state] * states, *weights),
        outputs=(((rows[0],), (rows[1],), (UNITS,)), *[state] * states),
        terms=(
            Gemm(
                (STEPS, BATCH), (UNITS,), (INPUTS,), (LAYERS,), gates, inputs_per_unit, _POINTWISE_OF_A_CELL
            ),
            Recurrence((LAYERS, STEPS), (BATCH,), (UNITS,), (INPUTS,)),
        ),
    )
