"""What the dims of ops mean in a graph: the batch, which can be split, which ops are constant."""

from __future__ import annotations

from syncline.graph.opgraph import Op, OpGraph, TensorKind


def batch_dims(graph: OpGraph) -> dict[int, int]:
    """For each op that has it, the iteration dim that runs over the samples of the batch.

    It starts as dim 0 of the graph's inputs and is followed through every op.
    """
    place: dict[int, int] = {tensor: 0 for tensor in graph.inputs if graph.tensors[tensor].shape}
    found: dict[int, int] = {}
    for op in graph.ops:
        dim = _carried(op, place)
        if dim is None:
            continue
        found[op.id] = dim
        for tensor, operand in zip(op.outputs, op.space.outputs, strict=True):
            position = operand.position(dim)
            if position is not None and position[1] == 0:
                place[tensor] = position[0]
    return found


def own_parameters(graph: OpGraph, op: Op) -> tuple[int, ...]:
    """The places of the parameters among an op's inputs that nothing else takes."""
    return tuple(
        place
        for place, tensor in enumerate(op.inputs)
        if graph.tensors[tensor].kind is TensorKind.PARAMETER
        and len(graph.consumers[tensor]) == 1
        and op.inputs.count(tensor) == 1
    )


def splittable_dims(graph: OpGraph, op: Op) -> tuple[int, ...]:
    """The dims of an op that a plan may split: every tensor is cut into contiguous blocks.

    Only the op's own parameters may be strided, since no other op minds how they lie: the gates of an LSTM
    are, when its units are split.
    """
    if len(op.space.contiguous) == len(op.space.splittable):
        return op.space.contiguous
    return op.space.contiguous_beside(own_parameters(graph, op))


def constant_ops(graph: OpGraph) -> frozenset[int]:
    """The ops that depend on no input and no parameter: positions, masks, rotary angles.

    They are small and the same on every device.
    """
    fixed: set[int] = set()
    for op in graph.ops:
        sources = (graph.producers[tensor] for tensor in op.inputs)
        kinds = (graph.tensors[tensor].kind for tensor in op.inputs)
        if all(
            source in fixed or (source is None and kind in (TensorKind.CONSTANT, TensorKind.BUFFER))
            for source, kind in zip(sources, kinds, strict=True)
        ):
            fixed.add(op.id)
    return frozenset(fixed)


def _carried(op: Op, place: dict[int, int]) -> int | None:
    for tensor, operand in zip(op.inputs, op.space.inputs, strict=True):
        where = place.get(tensor)
        if where is not None and operand.dims[where]:
            return operand.dims[where][0]
    return None
