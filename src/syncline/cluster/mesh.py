"""Mesh axes: the prime factors of each level's size, and which ranks a set of axes joins.

Pure arithmetic on ranks. A rank's coordinates are row-major with the innermost level fastest, so ranks of
one node follow each other, as torchrun numbers them, and `Mesh.shape` is the shape of a torch
`DeviceMesh` over `range(world_size)` with `Mesh.names` as its dimension names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from syncline.cluster.topology import Cluster
from syncline.errors import ClusterError, unknown_name


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One prime factor of one level's size."""

    name: str
    """`level.index`: `node.0` is the innermost axis of the level `node`, where ranks are neighbours."""
    level: int
    """Index of the level in `Cluster.levels`: 0 is the innermost."""
    size: int
    """A prime number."""


@dataclass(frozen=True)
class Mesh:
    """All axes of a cluster, from the outermost (slowest) to the innermost (fastest)."""

    axes: tuple[MeshAxis, ...]
    num_levels: int

    @classmethod
    def of(cls, cluster: Cluster) -> Mesh:
        """The mesh of a cluster; a level of size 1 has no axis."""
        axes = [
            MeshAxis(name=f"{level.name}.{position}", level=index, size=factor)
            for index, level in enumerate(cluster.levels)
            for position, factor in enumerate(prime_factors(level.size))
        ]
        return cls(axes=tuple(reversed(axes)), num_levels=len(cluster.levels))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return math.prod(self.shape)

    def axis(self, name: str) -> MeshAxis:
        """The axis of that name."""
        return self.axes[self._position(name)]

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank is on each axis."""
        if not 0 <= rank < self.world_size:
            raise ClusterError(f"There is no rank {rank}: the mesh has ranks 0 to {self.world_size - 1}.")
        return tuple(int(place) for place in np.unravel_index(rank, self.shape)) if self.axes else ()

    def rank_at(self, coordinates: Sequence[int]) -> int:
        """The rank at a place on each axis."""
        if len(coordinates) != len(self.axes) or not all(
            0 <= place < size for place, size in zip(coordinates, self.shape, strict=True)
        ):
            raise ClusterError(
                f"{tuple(coordinates)} is no place on a mesh of {self.shape} ({', '.join(self.names)})."
            )
        return int(np.ravel_multi_index(tuple(coordinates), self.shape)) if self.axes else 0

    def groups(self, names: Sequence[str]) -> np.ndarray:
        """All groups of ranks that differ on the named axes only: one group a row.

        Members are in row-major order of the axes **as given**: the first name is the slowest.
        Without names, every rank is a group of its own.
        """
        inside = [self._position(name) for name in self._distinct(names)]
        outside = [position for position in range(len(self.axes)) if position not in inside]
        ranks = np.arange(self.world_size).reshape(self.shape)
        members = math.prod(self.shape[position] for position in inside)
        return ranks.transpose(outside + inside).reshape(-1, members)

    def group_of(self, rank: int, names: Sequence[str]) -> tuple[int, ...]:
        """The ranks that the named axes join with one rank, itself among them."""
        self.coordinates(rank)
        groups = self.groups(names)
        row = int(np.nonzero(groups == rank)[0][0])
        return tuple(int(member) for member in groups[row])

    def spans(self, names: Iterable[str]) -> tuple[int, ...]:
        """How many members a group over the named axes has at each level, from the inside out.

        This is all that the cost of a collective depends on: axes of one level are interchangeable.
        """
        sizes = [1] * self.num_levels
        for name in self._distinct(names):
            axis = self.axis(name)
            sizes[axis.level] *= axis.size
        return tuple(sizes)

    def _position(self, name: str) -> int:
        if name not in self.names:
            raise ClusterError(unknown_name("mesh axis", name, self.names))
        return self.names.index(name)

    @staticmethod
    def _distinct(names: Iterable[str]) -> list[str]:
        given = list(names)
        if len(set(given)) != len(given):
            raise ClusterError(f"A mesh axis is named twice: {', '.join(given)}.")
        return given


def prime_factors(number: int) -> tuple[int, ...]:
    """The prime factors in ascending order: 12 gives 2, 2, 3."""
    factors = []
    candidate = 2
    while candidate * candidate <= number:
        while number % candidate == 0:
            factors.append(candidate)
            number //= candidate
        candidate += 1
    if number > 1:
        factors.append(number)
    return tuple(factors)
