"""Which op pays for each activation that is kept for backward, and which blocks could recompute theirs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from syncline.graph.opgraph import Op, OpGraph, TensorKind

_BLOCK = re.compile(r"^(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Charge:
    """A tensor whose memory an op pays for."""

    place: int
    """Among the op's inputs, then its outputs."""
    nbytes: int
    """Of the whole tensor."""
    enters_block: bool
    """It passes between blocks, so that it is kept even where blocks are recomputed."""


def find_charges(graph: OpGraph) -> list[list[Charge]]:
    """For each op the kept activations that it pays for; each is paid for once, by the first op to keep it.

    A view is the memory of what it shows.
    """
    charges: list[list[Charge]] = [[] for _ in graph.ops]
    passing = _passing(graph)
    paid: set[int] = set()
    for op in graph.ops:
        operands = (*op.inputs, *op.outputs)
        for tensor in op.saved:
            root = _root(graph, tensor)
            kind = graph.tensors[root].kind
            if root in paid or kind in (TensorKind.PARAMETER, TensorKind.BUFFER):
                continue
            paid.add(root)
            enters = graph.producers[root] is None or root in passing
            charges[op.id].append(Charge(operands.index(tensor), graph.tensors[root].bytes, enters))
    return charges


def block_of(op: Op) -> str | None:
    """The repeated block that an op belongs to: `blocks.3` of `blocks.3.attention.query`."""
    match = _BLOCK.match(op.module)
    return match.group(1) if match else None


def _passing(graph: OpGraph) -> set[int]:
    """The tensors that a block other than their maker's takes, or an op outside of it keeps."""
    passing: set[int] = set()
    for op in graph.ops:
        block = block_of(op)
        for tensor in op.inputs:
            root = _root(graph, tensor)
            producer = graph.producers[root]
            outside = producer is not None and block_of(graph.ops[producer]) != block
            if outside and (block is not None or tensor in op.saved):
                passing.add(root)
    return passing


def _root(graph: OpGraph, tensor: int) -> int:
    producer = graph.producers[tensor]
    while producer is not None and graph.ops[producer].is_view:
        tensor = graph.ops[producer].inputs[0]
        producer = graph.producers[tensor]
    return tensor
