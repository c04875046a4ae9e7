"""What a search in the paper's setting finds, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from syncline.planning.elimination import Statistics

Row = tuple[str, tuple[str, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """The configuration of one layer."""

    name: str
    """Of its op; of all of them where recurrent layers were joined."""
    ops: tuple[str, ...]
    """The ops that it stands for: its own, and those fused into it."""
    dims: tuple[str, ...]
    """The iteration dims that can be split."""
    parts: tuple[int, ...]
    """How many parts each of them is cut into."""
    cost: float
    """Of the layer alone, without the tensors that it exchanges."""


@dataclass(frozen=True, kw_only=True)
class PaseResult:
    """The cheapest strategy, and what people's strategies cost; all costs in FLOP equivalents."""

    devices: int
    ratio: float
    cutoff: int
    cost: float
    """Of the cheapest strategy."""
    data_parallel_cost: float
    expert: str | None
    """The expert's strategy that the paper compares with for such a model, if there is one."""
    expert_cost: float | None
    choices: tuple[LayerChoice, ...]
    unpriced: tuple[str, ...]
    """The ops that are part of no layer: they do not depend on both an input and a weight."""
    statistics: Statistics
    seconds: float
    """Of reading the graph, pricing and searching together."""

    @cached_property
    def configurations(self) -> dict[str, dict[str, int]]:
        """For each op of a layer the parts of the layer's dims, by name."""
        return {
            op: dict(zip(choice.dims, choice.parts, strict=True))
            for choice in self.choices
            for op in choice.ops
        }

    def rows(self) -> list[Row]:
        """Name, dims and parts of every layer; those alike but for numbers in their names are one row."""
        groups: dict[Row, list[str]] = {}
        for choice in self.choices:
            pattern = "".join("#" if piece.isdecimal() else piece for piece in _pieces(choice.name))
            groups.setdefault((pattern, choice.dims, choice.parts), []).append(choice.name)
        return [(name, dims, parts) for (_, dims, parts), names in groups.items() for name in folded(names)]


def folded(names: Sequence[str]) -> list[str]:
    """Paths that differ in one piece become one: `blocks.0-5.attention.{query,key}/linear`.

    Only paths that are all there are joined, so that a folded one never stands for more than was given.
    """
    if len({len(_pieces(name)) for name in names}) > 1:
        return list(names)
    rows = [_pieces(name) for name in names]
    for place in range(len(rows[0])):
        alike: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            alike.setdefault((*row[:place], "", *row[place + 1 :]), []).append(row[place])
        rows = [[*row[:place], _joined(found), *row[place + 1 :]] for row, found in alike.items()]
    return ["".join(row) for row in rows]


def _pieces(name: str) -> list[str]:
    return re.split(r"([./])", name)


def _joined(pieces: Sequence[str]) -> str:
    """Numbers that follow one another as a range, all else as a list."""
    if len(pieces) == 1:
        return pieces[0]
    if all(piece.isdecimal() for piece in pieces):
        numbers = sorted(map(int, pieces))
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]}-{numbers[-1]}"
    return "{" + ",".join(pieces) + "}"
