"""The cost formulas of PaSE (Elango, IPDPS 2021, and its published code), per device, in FLOP equivalents.

Lower-case letters are extents per device, size / parts, in real division; c_X is the number of parts of X;
rho is the FLOPs that a device does while it sends one word. A multiply-add counts as one. A ring all-reduce
of w words over P devices costs

    AR(w, P) = rho · 2 w (P - 1) / P

There is no latency, no overlap and no memory. Costs include the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from syncline.planning.pase.exchange import missing_words

Floats = NDArray[np.float64]
Dims: TypeAlias = tuple[int, ...]


class Shards:
    """What a device has of a layer, for many configurations at once."""

    def __init__(self, sizes: tuple[int, ...], parts: NDArray[np.int64], ratio: float) -> None:
        """Splits the dims.

        Args:
            sizes: the size of each dim.
            parts: the configurations, one a row.
            ratio: rho.
        """
        self.sizes = sizes
        self.ratio = ratio
        self._parts = parts.astype(np.float64)
        self._extents = np.array(sizes, dtype=np.float64) / self._parts

    def extent(self, dims: Dims) -> Floats:
        """The product of the extents of some dims, for each configuration."""
        return self._extents[:, list(dims)].prod(axis=1)

    def parts(self, dims: Dims) -> Floats:
        """The product of the numbers of parts of some dims, for each configuration."""
        return self._parts[:, list(dims)].prod(axis=1)

    def columns(self, dims: Dims) -> Floats:
        """The numbers of parts of some dims, a column each."""
        return self._parts[:, list(dims)]

    def all_reduce(self, words: Floats, parts: Floats) -> Floats:
        """AR(words, parts)."""
        return self.ratio * 2.0 * words * (parts - 1.0) / parts


class Term(Protocol):
    """A part of a layer's cost."""

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        ...


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrix products (M x K) (K x N), one for each index of the batch dims.

    batch · [3 mnk + 3 pw mn + AR(mn, c_K) + AR(mk, c_N) + AR(nk, c_M)]

    One product forward and two backward; pw pointwise ops, each with its derivative and their product; the
    all-reduces of partial outputs, of the gradient of the first operand and of that of the second, which is
    the all-reduce of weight gradients when M is split.
    """

    m: Dims
    n: Dims
    k: Dims
    batch: Dims = ()
    n_times: float = 1.0
    """N is this many times the product of its dims: the gates of a recurrent cell."""
    k_times: float = 1.0
    """The same for K: the input and the state of a cell."""
    pointwise: int = 0
    """pw."""

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        m = shards.extent(self.m)
        n = shards.extent(self.n) * self.n_times
        k = shards.extent(self.k) * self.k_times
        once = 3.0 * m * n * k + 3.0 * self.pointwise * m * n
        once += shards.all_reduce(m * n, shards.parts(self.k))
        once += shards.all_reduce(m * k, shards.parts(self.n))
        once += shards.all_reduce(n * k, shards.parts(self.m))
        return shards.extent(self.batch) * once


@dataclass(frozen=True, slots=True)
class Elementwise:
    """times · e, with e the elements per device: pointwise ops, one FLOP an element each."""

    dims: Dims
    times: float = 1.0

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        return self.times * shards.extent(self.dims)


@dataclass(frozen=True, slots=True)
class Pooling:
    """e + rho · rows · [prod (i + r where split) - prod i]: every output, and the halo of the inputs.

    i are the extents of the input along the window's dims, r the size of the window, rows those of the other
    dims.
    """

    rows: Dims
    positions: tuple[tuple[int | None, int, int], ...]
    """For each dim of the window: the layer's dim (None if of size 1), the input's size, the window's."""

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        rows = shards.extent(self.rows)
        outputs, inside, outside = rows.copy(), np.ones_like(rows), np.ones_like(rows)
        for dim, size, window in self.positions:
            parts = shards.parts(()) if dim is None else shards.parts((dim,))
            outputs *= 1.0 if dim is None else shards.extent((dim,))
            inside *= size / parts
            outside *= size / parts + np.where(parts > 1, window, 0)
        return outputs + shards.ratio * rows * (outside - inside)


@dataclass(frozen=True, slots=True)
class Softmax:
    """4 e + e A + 2 AR(e / a, c_A) + AR((e / a) A, c_A) over an axis of full size A.

    An exponential is 3 FLOPs; backward multiplies each element by its whole row.
    """

    rows: Dims
    axis: Dims

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        full = float(np.prod([shards.sizes[dim] for dim in self.axis]))
        rows, parts = shards.extent(self.rows), shards.parts(self.axis)
        elements = rows * shards.extent(self.axis)
        sums = 2.0 * shards.all_reduce(rows, parts)
        return elements * (4.0 + full) + sums + shards.all_reduce(rows * full, parts)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """4 e + 2 b, and 2 b rho if the classes are split, with b the rows per device: softmax and its loss."""

    rows: Dims
    classes: Dims

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        rows = shards.extent(self.rows)
        exchanged = np.where(shards.parts(self.classes) > 1, 2.0 * shards.ratio * rows, 0.0)
        return 4.0 * rows * shards.extent(self.classes) + 2.0 * rows + exchanged


@dataclass(frozen=True, slots=True)
class Norm:
    """16 e + 4 AR(e / a, c_A) + 4 AR(a, C), with a the extent of the normalised axis, C the other parts.

    Moments over the axis, and scale and shift, which the paper gives the size of the axis.
    """

    rows: Dims
    axis: Dims

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        rows, axis = shards.extent(self.rows), shards.extent(self.axis)
        moments = shards.all_reduce(rows, shards.parts(self.axis))
        weights = shards.all_reduce(axis, shards.parts(self.rows))
        return 16.0 * rows * axis + 4.0 * moments + 4.0 * weights


@dataclass(frozen=True, slots=True)
class ChannelNorm:
    """16 e + 8 AR(c, C): batch norm as it is, c the channels per device, C the parts of all other dims.

    Moments, scale and shift all have one element a channel. The paper's code has `Norm` over the batch
    instead, whose moments have one element for each channel and position.
    """

    channels: Dims
    others: Dims

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        channels = shards.extent(self.channels)
        exchanged = shards.all_reduce(channels, shards.parts(self.others))
        return 16.0 * channels * shards.extent(self.others) + 8.0 * exchanged


@dataclass(frozen=True, slots=True)
class Reduction:
    """AR(e, c_R) over the reduced dims R; the paper all-reduces what is not yet reduced."""

    kept: Dims
    reduced: Dims

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        return shards.all_reduce(shards.extent((*self.kept, *self.reduced)), shards.parts(self.reduced))


@dataclass(frozen=True, slots=True)
class Recurrence:
    """L S rho t: at each of S steps of L layers the output (batch, N) becomes the next input (batch, K).

    t are the words that a device misses then. Neither L nor S is divided by its parts.
    """

    steps: Dims
    batch: Dims
    n: Dims
    k: Dims

    def cost(self, shards: Shards) -> Floats:
        """The cost of each configuration."""
        steps = float(np.prod([shards.sizes[dim] for dim in self.steps]))
        extents = [shards.sizes[dim] for dim in (*self.batch, *self.n)]
        held = shards.columns((*self.batch, *self.n))
        needed = shards.columns((*self.batch, *self.k))
        return steps * shards.ratio * missing_words(extents, held, needed)
