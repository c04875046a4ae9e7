"""Cutting tensors along iteration dims, and joining the pieces again.

A tensor dim that is made of several iteration dims is seen as several dims, cut, and merged again: a cut of
the outermost one is a contiguous block, a cut of any other a strided one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from syncline.graph.space import Operand


@dataclass(frozen=True, slots=True)
class Part:
    """A range of an iteration dim: what one shard of it has."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How much of the dim it is."""
        return self.stop - self.start

    @classmethod
    def of(cls, size: int, parts: int, index: int) -> Part:
        """The part of this index, cut as `torch.chunk` and `DTensor` do: the last may be smaller."""
        step = -(-size // parts)
        return cls(min(size, step * index), min(size, step * (index + 1)))


def local_sizes(sizes: Sequence[int], parts: Mapping[int, Part]) -> tuple[int, ...]:
    """The size of each dim on the shard that has these parts of them."""
    return tuple(parts[dim].size if dim in parts else size for dim, size in enumerate(sizes))


def cut(
    tensor: torch.Tensor, operand: Operand, sizes: Sequence[int], parts: Mapping[int, Part]
) -> torch.Tensor:
    """The piece of a full tensor that a shard has.

    Args:
        tensor: The full tensor.
        operand: Which iteration dims it has.
        sizes: The full size of each iteration dim.
        parts: The shard's part of each dim that is split.
    """
    factors = [dim for dims in operand.dims for dim in dims]
    split = [dim for dim in factors if dim in parts]
    if not split:
        return tensor
    seen = tensor.reshape([sizes[dim] for dim in factors])
    for dim in split:
        seen = seen.narrow(factors.index(dim), parts[dim].start, parts[dim].size)
    return seen.reshape(operand.shape(local_sizes(sizes, parts)))


def join(pieces: Sequence[torch.Tensor], operand: Operand, sizes: Sequence[int], dim: int) -> torch.Tensor:
    """The full tensor of pieces that were cut along one iteration dim, in order.

    Args:
        pieces: One for each shard.
        operand: Which iteration dims the tensor has; `dim` is one of them.
        sizes: The full size of each iteration dim.
        dim: The dim that was cut.
    """
    factors = [one for dims in operand.dims for one in dims]
    seen = [piece.reshape([-1 if one == dim else sizes[one] for one in factors]) for piece in pieces]
    return torch.cat(seen, dim=factors.index(dim)).reshape(operand.shape(sizes))
