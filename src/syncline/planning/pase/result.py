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
        groups: dict[tuple[str, tuple[str, ...], tuple[int, ...]], list[str]] = {}
        for choice in self.choices:
            pattern = re.sub(r"\d+(?=[./-])", "#", choice.name)
            groups.setdefault((pattern, choice.dims, choice.parts), []).append(choice.name)
        return [(folded(names), dims, parts) for (_, dims, parts), names in groups.items()]


def folded(names: Sequence[str]) -> str:
    """One name for several that differ in the numbers of modules: `blocks.0-5.feed/linear`.

    Numbers that follow one another become a range, others a list.
    """
    pieces = [re.split(r"(\d+)(?=[./-])", name) for name in names]
    return "".join(_joined(column) for column in zip(*pieces, strict=True))


def _joined(column: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(column))
    if len(distinct) == 1:
        return distinct[0]
    numbers = sorted(map(int, distinct))
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return "{" + ",".join(map(str, numbers)) + "}"
