"""Finds the blocks that a model repeats: ops under `layers.0`, `layers.1`, ... that are the same op for op.

Module paths propose, structure decides: blocks are one repetition only if their ops, shapes, arguments and
the connections between them are equal, and they follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from syncline.graph.opgraph import Op, OpGraph, TensorKind


@dataclass(frozen=True, slots=True)
class Repetition:
    """Blocks that are alike. The k-th op of each does the same."""

    container: str
    """The path of the module that holds the blocks."""
    indices: tuple[str, ...]
    """The blocks' names in it."""
    blocks: tuple[tuple[int, ...], ...]
    """The ops of each block."""

    @property
    def label(self) -> str:
        """How the blocks are called together: `layers.0-11`."""
        span = f"{self.indices[0]}-{self.indices[-1]}"
        return f"{self.container}.{span}" if self.container else span


def find_repetitions(graph: OpGraph) -> tuple[Repetition, ...]:
    """The outermost repetitions of a graph, in its order."""
    found = _search(graph, [op.id for op in graph.ops], 0)
    return tuple(sorted(found, key=lambda repetition: repetition.blocks[0][0]))


def fold(graph: OpGraph) -> tuple[Op | Repetition, ...]:
    """All ops in order, each repetition once, where its first block begins."""
    repetitions = find_repetitions(graph)
    starts = {repetition.blocks[0][0]: repetition for repetition in repetitions}
    inside = {op for repetition in repetitions for block in repetition.blocks for op in block}
    folded: list[Op | Repetition] = []
    for op in graph.ops:
        if op.id in starts:
            folded.append(starts[op.id])
        elif op.id not in inside:
            folded.append(op)
    return tuple(folded)


def _search(graph: OpGraph, ops: Sequence[int], depth: int) -> Iterator[Repetition]:
    """Repetitions among ops whose paths are looked at from this depth on."""
    containers: dict[tuple[str, int], dict[str, list[int]]] = {}
    for op in ops:
        place = _numbered(graph.ops[op].module.split("."), depth)
        if place is not None:
            parts = graph.ops[op].module.split(".")
            blocks = containers.setdefault((".".join(parts[:place]), place), {})
            blocks.setdefault(parts[place], []).append(op)
    for (container, place), blocks in containers.items():
        alike = groupby(blocks.items(), key=lambda item: _signature(graph, item[1]))
        for _, run in alike:
            members = list(run)
            if len(members) > 1:
                indices, bodies = zip(*members, strict=True)
                yield Repetition(container, indices, tuple(map(tuple, bodies)))
            else:
                yield from _search(graph, members[0][1], place + 1)


def _numbered(parts: Sequence[str], depth: int) -> int | None:
    """The first part of a path from this depth on that is a number."""
    return next((place for place in range(depth, len(parts)) if parts[place].isdecimal()), None)


def _signature(graph: OpGraph, ops: Sequence[int]) -> Any:
    """What a block does, apart from where it is: equal for blocks that are alike."""
    places: dict[int, Any] = {}
    for number, op in enumerate(ops):
        for output, tensor in enumerate(graph.ops[op].outputs):
            places[tensor] = (number, output)
    outside: dict[int, int] = {}

    def source(index: int) -> Any:
        if index in places:
            return places[index]
        tensor = graph.tensors[index]
        order = outside.setdefault(index, len(outside))
        shared = index if tensor.kind is TensorKind.CONSTANT else None
        return tensor.kind, tensor.shape, tensor.dtype, tensor.requires_grad, order, shared

    return tuple(
        (
            graph.ops[op].target,
            tuple(map(source, graph.ops[op].inputs)),
            repr(graph.ops[op].attributes),
            graph.ops[op].space.notation,
            tuple(graph.tensors[index].shape for index in graph.ops[op].outputs),
        )
        for op in ops
    )
