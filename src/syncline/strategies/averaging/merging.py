"""How a node takes over an average that is some steps old. Pure arithmetic on flat tensors.

A node sent x_sent and has made W steps since, so that it stands at x. P nodes took part.

`paper`    x <- (2 W x + sum_j x_j_sent) / (2 W + P), with 1 in place of 2 W when W is 0 (DASO, as
           published). A share P / (2 W + P) of the W steps is lost.
`delta`    x <- x + (mean_j x_j_sent - x_sent): all own steps are kept, and what the others moved is added.
`replace`  x <- mean_j x_j_sent: for those who wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from syncline.strategies.averaging.wire import Average


@dataclass(frozen=True, slots=True)
class Merge:
    """What becomes of the weights: x <- keep x + change, which needs no copy of them."""

    keep: float
    changes: list[Tensor]
    """By bucket."""


class TakeOver(Protocol):
    """A rule for taking over averages, bucket by bucket."""

    parts: ClassVar[int]
    """How many numbers ranks of a node are told for each one."""

    def tell(self, average: Average) -> Tensor:
        """What the rank that speaks for a node tells its ranks of an average, which is used up."""
        ...

    def merge(self, told: Sequence[Tensor], waited: int) -> Merge:
        """What becomes of the weights so many steps after they were sent; what was told is used up."""
        ...


@dataclass(frozen=True, slots=True)
class ByPaper:
    """The published rule among so many nodes, with the sum written as P times the mean."""

    nodes: int
    parts: ClassVar[int] = 1

    def tell(self, average: Average) -> Tensor:
        """The mean."""
        return average.own()

    def merge(self, told: Sequence[Tensor], waited: int) -> Merge:
        """Weigh the node's own against the others."""
        own = 2 * waited or 1
        changes = [mean.mul_(self.nodes / (own + self.nodes)) for mean in told]
        return Merge(own / (own + self.nodes), changes)


class ByDelta:
    """The rule that keeps all own steps."""

    parts: ClassVar[int] = 1

    def tell(self, average: Average) -> Tensor:
        """What the others moved."""
        return average.movement()

    def merge(self, told: Sequence[Tensor], waited: int) -> Merge:
        """Add it."""
        return Merge(1.0, list(told))


class ByReplacing:
    """The rule of those who wait."""

    parts: ClassVar[int] = 1

    def tell(self, average: Average) -> Tensor:
        """The mean."""
        return average.own()

    def merge(self, told: Sequence[Tensor], waited: int) -> Merge:
        """Put it in place of the weights."""
        return Merge(0.0, list(told))
