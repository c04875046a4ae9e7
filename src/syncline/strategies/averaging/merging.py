"""How a node takes over an average that is some steps old. Pure arithmetic on flat tensors.

A node sent x_sent and has made W steps since, so that it stands at x. P nodes took part.

`paper`    x <- (2 W x + sum_j x_j_sent) / (2 W + P), with 1 in place of 2 W when W is 0 (DASO, as
           published). A share P / (2 W + P) of the W steps is lost.
`delta`    x <- x + (mean_j x_j_sent - x_sent): all own steps are kept, and what the others moved is added.
`replace`  x <- mean_j x_j_sent: for those who wait.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

Merge: TypeAlias = Literal["paper", "delta", "replace"]


def merge_paper(now: Tensor, mean: Tensor, *, waited: int, nodes: int) -> Tensor:
    """The published formula, with the sum written as P times the mean."""
    own = 2 * waited or 1
    return (own * now + nodes * mean) / (own + nodes)


def merge_delta(now: Tensor, mean: Tensor, sent: Tensor) -> Tensor:
    """Own place plus the others' movement."""
    return now + (mean - sent)
