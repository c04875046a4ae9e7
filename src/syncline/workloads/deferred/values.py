"""Recipes of tensors: how the elements of one are computed, in order, a range at a time.

A recipe sees its tensor as flat. Random numbers are made again from the generator's state, in blocks at which
torch's kernels give the same numbers as for the whole tensor (see `Drawn`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

CHUNK = 1 << 18
"""How many elements are computed at a time; a multiple of what torch's kernels do at once."""

_NORMAL_BLOCK = 16


@dataclass(frozen=True, eq=False)
class Filled:
    """The same number everywhere."""

    value: Tensor
    """A scalar of the type of the whole."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Random numbers, from a state of the CPU's generator.

    Uniform numbers are drawn one after the other. Normal ones are made in blocks of 16, and where the size is
    no multiple of that, the last 16 are drawn anew: so whole chunks before a last one of at least 16.
    """

    draw: Callable[..., Tensor]
    """The in-place op that fills a tensor."""
    arguments: tuple[Any, ...]
    numel: int
    dtype: torch.dtype
    state: Tensor

    def fill(self, count: int, generator: torch.Generator) -> Tensor:
        """The next elements."""
        return self.draw(torch.empty(count, dtype=self.dtype), *self.arguments, generator=generator)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges that can be drawn one after the other."""
        start = 0
        while start < self.numel:
            left = self.numel - start
            stop = self.numel if left < CHUNK + _NORMAL_BLOCK else start + CHUNK
            yield start, stop
            start = stop


@dataclass(frozen=True, eq=False)
class Computed:
    """What an elementwise op gives for each element of its operands."""

    op: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    """Recipes, and what is the same for all elements."""
    keywords: dict[str, Any]
    in_place: bool
    """Whether the op overwrites its first operand."""


@dataclass(frozen=True, eq=False)
class Sliced:
    """A range of another recipe."""

    source: Recipe
    start: int


@dataclass(frozen=True, eq=False)
class Patched:
    """Another recipe, with some range of it overwritten."""

    source: Recipe
    patch: Recipe
    start: int
    stop: int


Recipe: TypeAlias = Filled | Drawn | Computed | Sliced | Patched


class Reading:
    """One pass over a recipe, from its start towards its end."""

    def __init__(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._latest: dict[int, tuple[Recipe, int, int, Tensor]] = {}

    def read(self, recipe: Recipe, start: int, stop: int) -> Tensor:
        """The elements of a range; they must not be changed."""
        # One recipe may be an operand of several others, and random numbers are drawn once.
        known = self._latest.get(id(recipe))
        if known is not None and known[1:3] == (start, stop):
            return known[3]
        found = self._compute(recipe, start, stop)
        self._latest[id(recipe)] = (recipe, start, stop, found)
        return found

    def _compute(self, recipe: Recipe, start: int, stop: int) -> Tensor:
        match recipe:
            case Filled():
                return recipe.value.expand(stop - start)
            case Drawn():
                stream = self._streams.setdefault(id(recipe), _Stream(recipe))
                return stream.read(start, stop)
            case Sliced():
                return self.read(recipe.source, recipe.start + start, recipe.start + stop)
            case Patched():
                return self._patch(recipe, start, stop)
            case Computed():
                return self._apply(recipe, start, stop)

    def _patch(self, recipe: Patched, start: int, stop: int) -> Tensor:
        first, last = max(start, recipe.start), min(stop, recipe.stop)
        if first >= last:
            return self.read(recipe.source, start, stop)
        patch = self.read(recipe.patch, first - recipe.start, last - recipe.start)
        if (first, last) == (start, stop):
            return patch
        found = self.read(recipe.source, start, stop).clone()
        found[first - start : last - start] = patch
        return found

    def _apply(self, recipe: Computed, start: int, stop: int) -> Tensor:
        operands = [
            self.read(one, start, stop) if isinstance(one, Recipe) else one for one in recipe.arguments
        ]
        if recipe.in_place:
            operands[0] = operands[0].clone()
        return recipe.op(*operands, **recipe.keywords)


class _Stream:
    """Random numbers on their way: the blocks that the range read last is in."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self._restart()

    def _restart(self) -> None:
        self._generator = torch.Generator()
        self._generator.set_state(self._drawn.state)
        self._left = self._drawn.blocks()
        self._kept: list[Tensor] = []
        self._start = self._stop = 0

    def read(self, start: int, stop: int) -> Tensor:
        if start < self._start:
            self._restart()
        while self._stop < stop:
            first, last = next(self._left)
            self._kept.append(self._drawn.fill(last - first, self._generator))
            self._stop = last
            while self._kept and self._start + len(self._kept[0]) <= start:
                self._start += len(self._kept.pop(0))
        blocks = self._kept[0] if len(self._kept) == 1 else torch.cat(self._kept)
        return blocks[start - self._start : stop - self._start]


def chunks(numel: int) -> Iterator[tuple[int, int]]:
    """Ranges that make up a tensor."""
    return ((start, min(start + CHUNK, numel)) for start in range(0, numel, CHUNK))


def count_draws(recipe: Recipe) -> int:
    """How many times numbers are drawn to make a tensor."""
    found: dict[int, Recipe] = {}
    left: list[Any] = [recipe]
    while left:
        one = left.pop()
        if id(one) in found or not isinstance(one, Recipe):
            continue
        found[id(one)] = one
        match one:
            case Computed():
                left.extend(one.arguments)
            case Sliced():
                left.append(one.source)
            case Patched():
                left += [one.source, one.patch]
    return sum(isinstance(one, Drawn) for one in found.values())
