"""Folding what a model repeats, so that a search does not weigh the same block again and again.

Of a run of equal blocks the first, the last and one for all those between stand for the whole: blocks in the
middle are split alike. Everything else counts as often as it occurs, and tensors that pass from one middle
block to the next become edges from the middle block to itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from syncline.graph.blocks import find_repetitions
from syncline.graph.opgraph import OpGraph, TensorKind
from syncline.planning.saving import block_of

Use = tuple[int, int]
"""An op (that stands for others) and the place of a tensor among its inputs."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Tensors that are alike: made by the same op and used by the same ops, after folding."""

    tensor: int
    """One of them."""
    producer: int | None
    """The op that stands for their makers; None for parameters."""
    output: int
    """Which of that op's outputs they are."""
    uses: tuple[tuple[Use, int, bool], ...]
    """Who uses each, how often, and whether inside the maker's own block."""


@dataclass(frozen=True)
class Folding:
    """A graph with its repetitions folded."""

    stands_for: tuple[int, ...]
    """For each op, the op that stands for it."""
    weights: dict[int, int]
    """For each op that is kept, how many it stands for."""
    streams: dict[Stream, int]
    """Streams of tensors, and how many tensors each has."""


def fold(graph: OpGraph, apart: Mapping[int, Hashable] | None = None) -> Folding:
    """Fold a graph; `apart` labels ops, and blocks are split alike only if their labels agree."""
    labels = apart or {}
    stands_for = list(range(len(graph.ops)))
    for repetition in find_repetitions(graph):
        if len(repetition.blocks) > 3:
            first: dict[Hashable, tuple[int, ...]] = {}
            for block in repetition.blocks[1:-1]:
                middle = first.setdefault(tuple(map(labels.get, block)), block)
                for op, kept in zip(block, middle, strict=True):
                    stands_for[op] = kept
    return _folding(graph, stands_for)


def keep_all(graph: OpGraph) -> Folding:
    """Fold nothing: for plans that treat equal blocks differently."""
    return _folding(graph, list(range(len(graph.ops))))


def _folding(graph: OpGraph, stands_for: list[int]) -> Folding:
    return Folding(tuple(stands_for), dict(Counter(stands_for)), _streams(graph, stands_for))


def _streams(graph: OpGraph, stands_for: list[int]) -> dict[Stream, int]:
    uses: list[Counter[tuple[Use, bool]]] = [Counter() for _ in graph.tensors]
    for op in graph.ops:
        block = block_of(op)
        for place, tensor in enumerate(op.inputs):
            producer = graph.producers[tensor]
            inside = block is not None and producer is not None and block_of(graph.ops[producer]) == block
            uses[tensor][(stands_for[op.id], place), inside] += 1
    streams: Counter[Stream] = Counter()
    names: dict[object, int] = {}
    for tensor in graph.tensors:
        producer = graph.producers[tensor.id]
        if not uses[tensor.id] or (producer is None and tensor.kind is not TensorKind.PARAMETER):
            continue
        wanted = tuple(sorted((use, count, inside) for (use, inside), count in uses[tensor.id].items()))
        if producer is None:
            streams[Stream(tensor.id, None, 0, wanted)] += 1
            continue
        output = graph.ops[producer].outputs.index(tensor.id)
        one = names.setdefault((stands_for[producer], output, wanted), tensor.id)
        streams[Stream(one, stands_for[producer], output, wanted)] += 1
    return dict(streams)
