"""The notation of iteration spaces: parses a rule's text and fits it to the shapes of one call.

`"... k, n k, +n -> ... n"` lists the tensors that an op takes and gives, and the iteration dims of each:

- `n` is one dim. A dim that an output has can be split freely; one that only inputs have is summed over.
- `(h d)` is a tensor dim made of several iteration dims, outermost first.
- `...` is any number of leading or inner dims, aligned at the right between tensors.
- `k!` cannot be split; `k~` can, with an exchange inside the op. A mark at one place holds everywhere.
- `1` is a dim of size 1, `.` a tensor without dims. Where a dim meets one of size 1, that is broadcast.
- `+n` is a tensor that is added to a sum: only one shard of the sum may add it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from syncline.graph.space import Dim, DimKind, Exchange, FlopTerm, IterationSpace, Operand, Volume

Shape: TypeAlias = tuple[int, ...]


class NotationError(ValueError):
    """A notation that does not fit the tensors of a call."""


_TOKEN = re.compile(r"\.\.\.|\(|\)|[a-z][a-z0-9_]*[!~]?|1|\.|\+")
_MARKS = {"!": DimKind.WHOLE, "~": DimKind.COLLECTIVE}


@dataclass(frozen=True, slots=True)
class Contraction:
    """A multiplication and sum over dims: where an op's FLOPs are."""

    factors: tuple[tuple[int, ...], ...]
    """Places of the op's inputs in the notation."""
    over: str | None = None
    """The dims, or None for all dims of the op."""


@dataclass(frozen=True, slots=True)
class ExchangeNote:
    """What splitting a `~` dim exchanges; each volume is a number and dims, as in `2 ...`."""

    dim: str
    collective: Literal["all_reduce", "all_gather"]
    forward: str
    backward: str
    forward_rounds: str = "1"
    backward_rounds: str = "1"


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table: the notation, and what it cannot say."""

    notation: str
    contractions: tuple[Contraction, ...] = ()
    exchanges: tuple[ExchangeNote, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    """Sizes of dims that the shapes alone do not tell."""
    linear_in: tuple[tuple[int, ...], ...] = ()
    local: str | None = None
    random: bool = False


@dataclass(frozen=True, slots=True)
class _Pattern:
    """One tensor of a notation; an ellipsis is None, any other tensor dim a tuple of names."""

    dims: tuple[tuple[str, ...] | None, ...]
    once: bool

    @property
    def fixed(self) -> int:
        return sum(names is not None for names in self.dims)


@dataclass(frozen=True, slots=True)
class _Parsed:
    inputs: tuple[_Pattern, ...]
    outputs: tuple[_Pattern, ...]
    marks: tuple[tuple[str, DimKind], ...]


@lru_cache(maxsize=4096)
def fit(rule: Rule, inputs: tuple[Shape | None, ...], outputs: tuple[Shape, ...]) -> IterationSpace:
    """The iteration space of a call whose tensors have these shapes; None for inputs left out."""
    parsed = _parse(rule.notation)
    places = [index for index, shape in enumerate(inputs) if shape is not None]
    if (places and places[-1] >= len(parsed.inputs)) or len(outputs) != len(parsed.outputs):
        raise NotationError(f"'{rule.notation}' has fewer tensors than the call")
    patterns = [(parsed.inputs[index], inputs[index] or ()) for index in places]
    patterns += list(zip(parsed.outputs, outputs, strict=True))
    spread = [_spread(pattern, shape, _ellipsis_rank(patterns)) for pattern, shape in patterns]
    sizes = _solve_sizes(spread, [shape for _, shape in patterns], dict(rule.sizes), rule.notation)
    return _Fitted(rule, parsed, places, spread, sizes, [shape for _, shape in patterns]).space()


def _parse_tensor(text: str, marks: dict[str, DimKind]) -> _Pattern:
    dims: list[tuple[str, ...] | None] = []
    group: list[str] | None = None
    once = False
    for token in _TOKEN.findall(text):
        if token == "+":
            once = True
        elif token == "...":
            dims.append(None)
        elif token == "(":
            group = []
        elif token == ")":
            dims.append(tuple(group or ()))
            group = None
        elif token == "1":
            dims.append(())
        elif token != ".":
            name = token.rstrip("!~")
            if token != name:
                marks[name] = _MARKS[token[-1]]
            if group is None:
                dims.append((name,))
            else:
                group.append(name)
    return _Pattern(tuple(dims), once)


@lru_cache(maxsize=4096)
def _parse(notation: str) -> _Parsed:
    left, _, right = notation.partition("->")
    marks: dict[str, DimKind] = {}
    inputs = tuple(_parse_tensor(text, marks) for text in left.split(",") if left.strip())
    outputs = tuple(_parse_tensor(text, marks) for text in right.split(","))
    return _Parsed(inputs, outputs, tuple(marks.items()))


def _ellipsis_rank(patterns: Sequence[tuple[_Pattern, Shape]]) -> int:
    ranks = (len(shape) - pattern.fixed for pattern, shape in patterns if None in pattern.dims)
    return max(ranks, default=0)


def _spread(pattern: _Pattern, shape: Shape, widest: int) -> list[tuple[str, ...]]:
    """The names of each tensor dim, the ellipsis written out as b0 b1 ..."""
    rank = len(shape) - pattern.fixed
    leading = [(f"b{widest - rank + index}",) for index in range(rank)]
    spread: list[tuple[str, ...]] = []
    for names in pattern.dims:
        spread += leading if names is None else [names]
    if rank < 0 or len(spread) != len(shape):
        raise NotationError(f"{pattern.dims} does not fit the shape {shape}")
    return spread


def _solve_sizes(
    tensors: Sequence[list[tuple[str, ...]]], shapes: Sequence[Shape], sizes: dict[str, int], text: str
) -> dict[str, int]:
    """The size of every dim: from tensor dims of one name, then from merged ones with one unknown."""
    merged: list[tuple[tuple[str, ...], int]] = []
    for names, shape in zip(tensors, shapes, strict=True):
        for factors, extent in zip(names, shape, strict=True):
            if len(factors) == 1:
                known = sizes.get(factors[0], 1)
                sizes[factors[0]] = extent if known == 1 else known
            elif factors:
                merged.append((factors, extent))
    for _ in merged:
        for factors, extent in merged:
            unknown = [name for name in factors if name not in sizes]
            if len(unknown) == 1:
                sizes[unknown[0]] = extent // max(1, math.prod(sizes[n] for n in factors if n in sizes))
    for factors, _ in merged:
        if any(name not in sizes for name in factors):
            raise NotationError(f"'{text}': the sizes in {factors} are not known")
    return sizes


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A notation with all names and sizes known; makes the space of it."""

    rule: Rule
    parsed: _Parsed
    places: list[int]
    tensors: list[list[tuple[str, ...]]]
    sizes: dict[str, int]
    shapes: list[Shape]

    def space(self) -> IterationSpace:
        rule, count = self.rule, len(self.places)
        names = list(dict.fromkeys(n for tensor in self.tensors for factors in tensor for n in factors))
        names = [name for name in names if self.sizes[name] != 1]
        index = {name: place for place, name in enumerate(names)}
        operands = [self._operand(place, index) for place in range(len(self.tensors))]
        return IterationSpace(
            notation=rule.notation,
            dims=tuple(self._dim(name, operands[count:], index) for name in names),
            inputs=tuple(operands[:count]),
            outputs=tuple(operands[count:]),
            flop_terms=tuple(self._flops(contraction, index) for contraction in rule.contractions),
            linear_in=tuple(group for group in map(self._present, rule.linear_in) if group),
            local=rule.local,
            random=rule.random,
        )

    def _operand(self, place: int, index: dict[str, int]) -> Operand:
        dims = []
        for factors, extent in zip(self.tensors[place], self.shapes[place], strict=True):
            product = math.prod(self.sizes[name] for name in factors)
            if extent not in (1, product):
                raise NotationError(f"'{self.rule.notation}': {factors} make {product}, not {extent}")
            dims.append(() if extent == 1 else tuple(index[name] for name in factors if name in index))
        is_input = place < len(self.places)
        return Operand(tuple(dims), is_input and self.parsed.inputs[self.places[place]].once)

    def _dim(self, name: str, outputs: list[Operand], index: dict[str, int]) -> Dim:
        default = DimKind.FREE if any(output.has(index[name]) for output in outputs) else DimKind.SUM
        kind = dict(self.parsed.marks).get(name, default)
        notes = [note for note in self.rule.exchanges if note.dim == name]
        return Dim(name, self.sizes[name], kind, self._exchange(notes[0], index) if notes else None)

    def _exchange(self, note: ExchangeNote, index: dict[str, int]) -> Exchange:
        forward, backward, forward_rounds, backward_rounds = (
            self._volume(text, index)
            for text in (note.forward, note.backward, note.forward_rounds, note.backward_rounds)
        )
        return Exchange(note.collective, forward, backward, forward_rounds, backward_rounds)

    def _volume(self, text: str, index: dict[str, int]) -> Volume:
        factor, *names = text.split()
        return Volume(int(factor), self._named(names, index))

    def _named(self, names: list[str], index: dict[str, int]) -> tuple[int, ...]:
        """The dims of these names; `...` stands for all that an ellipsis became."""
        found: list[int] = []
        for name in names:
            spread = [n for n in index if re.fullmatch(r"b\d+", n)] if name == "..." else [name]
            found += [index[one] for one in spread if one in index]
        return tuple(found)

    def _flops(self, contraction: Contraction, index: dict[str, int]) -> FlopTerm:
        over = contraction.over
        dims = tuple(index.values()) if over is None else self._named(over.split(), index)
        return FlopTerm(dims, tuple(self._present(factor) for factor in contraction.factors))

    def _present(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Places in the notation as indices of the inputs that the call has."""
        return tuple(self.places.index(place) for place in places if place in self.places)
