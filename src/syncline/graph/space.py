"""The iteration space of one op: its dims, which of them each tensor has, and what splitting one takes.

It decides nothing: which dims are split, and over which links, is for the planner. The rule that makes a
space enough for both directions of training: an axis that splits a dim shards every tensor of the op that
has the dim; a tensor that lacks it is partial over that axis, an output in forward, an input's gradient in
backward.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal, TypeAlias

Factors: TypeAlias = tuple[int, ...]
"""The iteration dims (indices) whose product is one tensor dim, outermost first; empty for size 1."""


class DimKind(StrEnum):
    """What splitting an iteration dim means."""

    FREE = "free"
    """Outputs have it: each shard computes its part of them, and nothing is exchanged."""
    SUM = "sum"
    """Outputs lack it: each shard computes a summand of them (partial sums)."""
    COLLECTIVE = "collective"
    """Outputs have it or not, but the shards must exchange something inside the op: see `Exchange`."""
    WHOLE = "whole"
    """It cannot be split."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A number of elements that depends on dims: factor × the product of their (local) sizes."""

    factor: int
    dims: tuple[int, ...] = ()

    def count(self, sizes: Sequence[int]) -> int:
        """The elements, given the size of each dim of the space."""
        return self.factor * math.prod(sizes[dim] for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the shards of a `collective` dim send inside the op, each its own part.

    `forward` and `backward` are the elements that each shard puts into all collectives of that direction
    together; `rounds` says how many collectives wait for one another in each direction.
    """

    collective: Literal["all_reduce", "all_gather"]
    forward: Volume
    backward: Volume
    forward_rounds: Volume = Volume(1)
    backward_rounds: Volume = Volume(1)


@dataclass(frozen=True, slots=True)
class Dim:
    """One iteration dim."""

    name: str
    size: int
    kind: DimKind
    exchange: Exchange | None = None
    """Only of a `collective` dim."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Which iteration dims a tensor of the op has."""

    dims: tuple[Factors, ...]
    """For each tensor dim, the iteration dims that it is made of."""
    once: bool = False
    """Added to a sum: where a `sum` dim is split only its first shard adds it, the others add zero."""

    def has(self, dim: int) -> bool:
        """Whether the tensor has this iteration dim."""
        return any(dim in factors for factors in self.dims)

    def position(self, dim: int) -> tuple[int, int] | None:
        """The tensor dim that the iteration dim is in, and its place among the factors there."""
        for index, factors in enumerate(self.dims):
            if dim in factors:
                return index, factors.index(dim)
        return None

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The tensor's shape, given the (local) size of each iteration dim."""
        return tuple(math.prod(sizes[dim] for dim in factors) for factors in self.dims)


@dataclass(frozen=True, slots=True)
class FlopTerm:
    """One contraction inside the op: 2 × the product of its dims, forward.

    Backward does as much again for each factor (a group of inputs) that needs a gradient.
    """

    dims: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    """Indices of the op's inputs; a factor needs a gradient if any of its inputs does."""

    def forward(self, sizes: Sequence[int]) -> int:
        """FLOPs of the forward pass, given the (local) size of each dim."""
        return 2 * math.prod(sizes[dim] for dim in self.dims)

    def backward(self, sizes: Sequence[int], needs_gradient: Sequence[bool]) -> int:
        """FLOPs of the backward pass, given which of the op's inputs need a gradient."""
        wanted = sum(any(needs_gradient[index] for index in factor) for factor in self.factors)
        return wanted * self.forward(sizes)


@dataclass(frozen=True)
class IterationSpace:
    """The iteration space of one op, at its full size. Dims of size 1 are left out."""

    notation: str
    """How the table or its rule wrote it."""
    dims: tuple[Dim, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    flop_terms: tuple[FlopTerm, ...] = ()
    linear_in: tuple[tuple[int, ...], ...] = ()
    """Groups of inputs in which the op is jointly linear: partial sums can pass through, if all inputs of
    one group are partial over the same axes and no other input is."""
    local: str | None = None
    """Which adaptation the op's arguments need where a dim is split: see `graph.local`."""
    random: bool = False
    """It draws random numbers: shards need different streams, replicas the same one."""
    ruled: bool = True
    """False when the table has no rule for the op, so that nothing can be split."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The full size of each dim."""
        return tuple(dim.size for dim in self.dims)

    @cached_property
    def splittable(self) -> tuple[int, ...]:
        """The dims that can be split at all."""
        return tuple(index for index, dim in enumerate(self.dims) if dim.kind is not DimKind.WHOLE)

    @cached_property
    def contiguous(self) -> tuple[int, ...]:
        """The splittable dims that are outermost wherever they are merged with others.

        Splitting one of them cuts each tensor into contiguous blocks along one of its dims, as a plain
        `Shard(dim)` does, provided that the parts divide the dim's size. The other splittable dims leave
        strided blocks: the local tensor is right for the op, but it is a different layout.
        """
        return self.contiguous_beside(())

    def contiguous_beside(self, inputs: Collection[int]) -> tuple[int, ...]:
        """The splittable dims that are contiguous in all tensors but, maybe, some inputs.

        Parameters that no other op takes can have any layout: the gates of an LSTM are strided there.
        """
        operands = [operand for place, operand in enumerate(self.inputs) if place not in inputs]
        return tuple(
            dim
            for dim in self.splittable
            if all((operand.position(dim) or (0, 0))[1] == 0 for operand in (*operands, *self.outputs))
        )

    def index(self, name: str) -> int:
        """The dim of this name."""
        for index, dim in enumerate(self.dims):
            if dim.name == name:
                return index
        raise KeyError(f"no dim '{name}' among {', '.join(dim.name for dim in self.dims)}")

    def local_sizes(self, parts: Mapping[int, int]) -> tuple[int, ...]:
        """The size of each dim in the largest shard, when some are cut into that many parts."""
        return tuple(-(-dim.size // parts.get(index, 1)) for index, dim in enumerate(self.dims))

    def forward_flops(self, sizes: Sequence[int] | None = None) -> int:
        """FLOPs of the forward pass, at full size or with these local sizes."""
        return sum(term.forward(sizes or self.sizes) for term in self.flop_terms)

    def backward_flops(self, needs_gradient: Sequence[bool], sizes: Sequence[int] | None = None) -> int:
        """FLOPs of the backward pass, given which of the op's inputs need a gradient."""
        return sum(term.backward(sizes or self.sizes, needs_gradient) for term in self.flop_terms)
