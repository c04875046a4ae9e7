"""What it costs that a layer needs a tensor laid out otherwise than its producer leaves it.

With T the extents of the tensor, u and v the parts that producer and consumer cut them into,

    words = max(0, prod T / v - overlap),   overlap = prod min(T / u, T / v), or 0 if prod v > prod u

at the device that misses most: shards are taken to be aligned as well as they can be. The edge costs
2 rho words, forward and backward. Replicas are not seen: only the parts of the tensor count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncline.planning.elimination import LayoutCosts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def missing_words(extents: Sequence[int], held: Floats, needed: Floats) -> Floats:
    """The words that a device must get.

    Args:
        extents: T, the size of each dim of the tensor.
        held: u along the last axis; the others broadcast against those of `needed`.
        needed: v.
    """
    sizes = np.array(extents, dtype=np.float64)
    wanted = (sizes / needed).prod(axis=-1)
    overlap = (sizes / np.maximum(held, needed)).prod(axis=-1)
    overlap = np.where(needed.prod(axis=-1) > held.prod(axis=-1), 0.0, overlap)
    return np.maximum(wanted - overlap, 0.0)


@dataclass(frozen=True, slots=True)
class Group:
    """Dims of a layer that together cut some factors of a tensor, outermost first."""

    dims: tuple[int, ...]
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor between two layers, seen as the product of factors that both of them cut."""

    source: int
    target: int
    factors: tuple[int, ...]
    """The size of each factor."""
    held: tuple[Group, ...]
    """How the dims of the source cut them."""
    needed: tuple[Group, ...]
    """How the dims of the target cut them."""

    def costs(self, source: Ints, target: Ints, ratio: float) -> LayoutCosts:
        """2 rho words for all configurations of both layers, by layout."""
        held, rows = np.unique(_layouts(source, self.held, self.factors), axis=0, return_inverse=True)
        needed, cols = np.unique(_layouts(target, self.needed, self.factors), axis=0, return_inverse=True)
        words = missing_words(self.factors, held[:, None, :], needed[None, :, :])
        return LayoutCosts(2.0 * ratio * words, rows.reshape(-1), cols.reshape(-1))


def _layouts(parts: Ints, groups: Sequence[Group], factors: Sequence[int]) -> Floats:
    """The parts of each factor, one row a configuration.

    Within a group the outermost factors are cut first, as contiguous shards do, and the innermost takes what
    is left.
    """
    cut = np.ones((len(parts), len(factors)), dtype=np.int64)
    for group in groups:
        left = parts[:, list(group.dims)].prod(axis=1)
        for factor in group.factors[:-1]:
            cut[:, factor] = np.gcd(left, factors[factor])
            left = left // cut[:, factor]
        if group.factors:
            cut[:, group.factors[-1]] = left
    return cut.astype(np.float64)
