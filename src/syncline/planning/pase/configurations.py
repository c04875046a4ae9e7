"""The configuration space of the paper: how many ways each dim of a layer may be split.

A configuration is a tuple (c_1 .. c_d), one number of parts a dim, with c_1 · ... · c_d <= p. A dim of size n
may be cut into c equal parts if c divides n and each part keeps n / c >= cutoff; into one always.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from syncline.planning.pase.layer import LayerDim

Ints = NDArray[np.int64]


def configurations(dims: Sequence[LayerDim], devices: int, cutoff: int) -> Ints:
    """All configurations of a layer, one a row, in lexicographic order.

    Args:
        dims: the dims of the layer; those that are not splittable stay whole.
        devices: p, the most parts that a layer may have.
        cutoff: the least size that a part of a split dim may have.
    """
    rows: list[tuple[int, ...]] = [()]
    for dim in dims:
        choices = _parts(dim, devices, cutoff)
        rows = [(*row, parts) for row in rows for parts in choices if math.prod(row) * parts <= devices]
    return np.array(rows, dtype=np.int64).reshape(len(rows), len(dims))


def _parts(dim: LayerDim, devices: int, cutoff: int) -> list[int]:
    """The numbers of parts that one dim may be cut into."""
    if not dim.splittable:
        return [1]
    return [1, *(c for c in range(2, devices + 1) if dim.size % c == 0 and dim.size // c >= cutoff)]
