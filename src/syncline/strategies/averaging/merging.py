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
from typing import Protocol

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

    def __call__(self, averages: Sequence[Average], sent: Sequence[Tensor], waited: int) -> Merge:
        """What becomes of the weights; the averages may be overwritten.

        Args:
            averages: What came back.
            sent: Where this node stood when it sent.
            waited: How many steps ago that was.
        """
        ...


def by_paper(nodes: int) -> TakeOver:
    """The published rule among so many nodes, with the sum written as P times the mean."""

    def take_over(averages: Sequence[Average], sent: Sequence[Tensor], waited: int) -> Merge:
        own = 2 * waited or 1
        changes = [average.own().mul_(nodes / (own + nodes)) for average in averages]
        return Merge(own / (own + nodes), changes)

    return take_over


def by_delta(averages: Sequence[Average], sent: Sequence[Tensor], waited: int) -> Merge:
    """The rule that keeps all own steps."""
    changes = [average.own().sub_(before) for average, before in zip(averages, sent, strict=True)]
    return Merge(1.0, changes)


def by_replacing(averages: Sequence[Average], sent: Sequence[Tensor], waited: int) -> Merge:
    """The rule of those who wait."""
    return Merge(0.0, [average.own() for average in averages])
