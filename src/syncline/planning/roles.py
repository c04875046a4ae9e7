"""What the dims of ops mean to people: which one is the batch, which ops are products, who feeds whom."""

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
