"""What a search returns: the choice, what it costs, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """How a solution was found."""

    space: int
    """The number of choices there are: the product of all numbers of configurations."""
    configurations: int
    """The configurations of all nodes together."""
    kept: int
    """How many of them were left when the elimination began."""
    passes: int
    """The passes of bounds that were run."""
    width: int
    """The largest number of nodes that a message depended on."""
    steps: int
    """The nodes that were eliminated; the others had one configuration left."""
    tables: int
    """The tables computed; the other steps repeated one of them."""
    cells: int
    """The cells of these tables."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A best choice."""

    value: float
    """F of the choice, and so F*; inf if every choice is forbidden."""
    choice: tuple[int, ...]
    """The configuration of each node."""
    statistics: Statistics
