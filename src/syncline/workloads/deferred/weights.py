"""A large weight that is not made yet: its shape, and the recipe of its elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from syncline.workloads.deferred.values import CHUNK, Reading, Recipe


@dataclass(frozen=True, slots=True)
class Box:
    """A range of each dim of a tensor, which may be seen in another shape than its own."""

    seen: tuple[int, ...]
    """The shape in which the tensor is seen."""
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """All of a tensor."""
        return cls(tuple(shape), (0,) * len(shape), tuple(shape))

    def narrow(self, dim: int, start: int, size: int) -> Box:
        """A range of this range."""
        starts, sizes = list(self.starts), list(self.sizes)
        starts[dim] += start
        sizes[dim] = size
        return Box(self.seen, tuple(starts), tuple(sizes))


@dataclass(frozen=True, eq=False)
class DeferredWeight:
    """A weight of which any part can be made."""

    shape: torch.Size
    dtype: torch.dtype
    recipe: Recipe

    def make(self, box: Box | None = None, device: torch.device | str = "cpu") -> Tensor:
        """The elements of a box, in its shape; all by default. Memory is that of the box and some chunks."""
        box = box or Box.whole(self.shape)
        if math.prod(box.seen) != self.shape.numel():
            raise ValueError(f"a weight of shape {tuple(self.shape)} cannot be seen as {box.seen}")
        made = torch.empty(box.sizes, dtype=self.dtype, device=device)
        if made.numel():
            _Filling(self.recipe).fill(made, box, 0)
        return made


class _Filling:
    """One pass over a recipe that keeps the elements of a box."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._reading = Reading()

    def fill(self, made: Tensor, box: Box, offset: int) -> None:
        """Fill a tensor with the box of the elements from an offset on: as many rows at a time as fit."""
        row = math.prod(box.seen[1:])
        first, last = box.starts[0], box.starts[0] + box.sizes[0]
        if row > CHUNK:
            inner = Box(box.seen[1:], box.starts[1:], box.sizes[1:])
            for at in range(first, last):
                self.fill(made[at - first], inner, offset + at * row)
            return
        rows = CHUNK // row
        for at in range(first, last, rows):
            count = min(rows, last - at)
            read = self._reading.read(self._recipe, offset + at * row, offset + (at + count) * row)
            block = read.view(count, *box.seen[1:])
            for dim in range(1, len(box.seen)):
                block = block.narrow(dim, box.starts[dim], box.sizes[dim])
            made[at - first : at - first + count].copy_(block)
