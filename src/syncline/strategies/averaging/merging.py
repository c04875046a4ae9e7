"""How a node takes over an average that is some steps old. Pure arithmetic on flat tensors.

A node sent x_sent and has made W steps since, so that it stands at x. P nodes took part.

`paper`    x <- (2 W x + sum_j x_j_sent) / (2 W + P), with 1 in place of 2 W when W is 0 (DASO, as
           published). A share P / (2 W + P) of the W steps is lost.
`delta`    x <- x + (mean_j x_j_sent - x_sent): all own steps are kept, and what the others moved is added.
`replace`  x <- mean_j x_j_sent: for those who wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from syncline.strategies.averaging.wire import Average


class TakeOver(Protocol):
    """A rule for taking over averages, bucket by bucket."""

    def __call__(
        self, now: Sequence[Tensor], averages: Sequence[Average], sent: Sequence[Tensor], waited: int
    ) -> list[Tensor]:
        """The weights from here on.

        Args:
            now: Where this node stands.
            averages: What came back.
            sent: Where this node stood when it sent.
            waited: How many steps ago that was.
        """
        ...


def merge_paper(now: Tensor, mean: Tensor, *, waited: int, nodes: int) -> Tensor:
    """The published formula, with the sum written as P times the mean."""
    own = 2 * waited or 1
    return (own * now + nodes * mean) / (own + nodes)


def merge_delta(now: Tensor, mean: Tensor, sent: Tensor) -> Tensor:
    """Own place plus the others' movement."""
    return now + (mean - sent)


def by_paper(nodes: int) -> TakeOver:
    """The published rule among so many nodes."""

    def take_over(
        now: Sequence[Tensor], averages: Sequence[Average], sent: Sequence[Tensor], waited: int
    ) -> list[Tensor]:
        return [
            merge_paper(each, average.own(), waited=waited, nodes=nodes)
            for each, average in zip(now, averages, strict=True)
        ]

    return take_over


def by_delta(
    now: Sequence[Tensor], averages: Sequence[Average], sent: Sequence[Tensor], waited: int
) -> list[Tensor]:
    """The rule that keeps all own steps."""
    return [
        merge_delta(each, average.own(), before)
        for each, average, before in zip(now, averages, sent, strict=True)
    ]


def by_replacing(
    now: Sequence[Tensor], averages: Sequence[Average], sent: Sequence[Tensor], waited: int
) -> list[Tensor]:
    """The rule of those who wait."""
    return [average.own() for average in averages]
