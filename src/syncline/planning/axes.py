"""The mesh axes that a search splits dims over.

They are the prime factors of each level's size. A cluster with many of them has more shardings an op than a
search can weigh, so beyond `MAX_AXES` neighbouring factors of one level are joined: 1024 devices as 8 x 128
are searched over axes of 2, 4 (in a node) and 8, 16 (between nodes). The plan says which axes it used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from syncline.cluster.mesh import MeshAxis, prime_factors
from syncline.cluster.topology import Cluster

MAX_AXES = 4


@dataclass(frozen=True)
class SearchAxes:
    """The axes of one search, from the outermost to the innermost, and groups over sets of them.

    A set of axes is a bit mask: bit i stands for `axes[i]`.
    """

    cluster: Cluster
    axes: tuple[MeshAxis, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(axis.size for axis in self.axes)

    def spans(self, mask: int) -> tuple[int, ...]:
        """How many members a group over a set of axes has at each level, from the inside out."""
        spans = [1] * len(self.cluster.levels)
        for index, axis in enumerate(self.axes):
            if mask >> index & 1:
                spans[axis.level] *= axis.size
        return tuple(spans)

    def members(self, mask: int) -> int:
        """How many devices a group over a set of axes has."""
        return math.prod(self.spans(mask))

    def names(self, mask: int) -> tuple[str, ...]:
        """The names of a set of axes."""
        return tuple(axis.name for index, axis in enumerate(self.axes) if mask >> index & 1)


def search_axes(cluster: Cluster, limit: int = MAX_AXES) -> SearchAxes:
    """At most `limit` axes (though at least one for each level) for a cluster."""
    factors = [list(prime_factors(level.size)) for level in cluster.levels]
    while sum(map(len, factors)) > limit and any(len(level) > 1 for level in factors):
        longest = max(range(len(factors)), key=lambda index: len(factors[index]))
        level = sorted(factors[longest])
        factors[longest] = sorted([level[0] * level[1], *level[2:]])
    axes = [
        MeshAxis(name=f"{cluster.levels[index].name}.{position}", level=index, size=size)
        for index, level in enumerate(factors)
        for position, size in enumerate(level)
    ]
    return SearchAxes(cluster, tuple(reversed(axes)))
