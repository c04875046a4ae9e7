"""Layouts carried through views: which factors of a layer's output each dim of a later tensor is made of.

A view that merges, splits or permutes dims moves no data, so it is no layer here; the layer behind it reads
the output of the layer before it, factor by factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from syncline.graph import IterationSpace
from syncline.planning.pase.exchange import Edge, Group
from syncline.planning.pase.layer import Nest, Placement


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of a dim of a layer's output: index // stride % size."""

    dim: int
    """Of the output tensor."""
    owner: int
    """The layer's dim that cuts it."""
    stride: int
    size: int

    def split(self, outer: int) -> tuple[Factor, Factor]:
        """It as an outer factor of this size and an inner one."""
        inner = self.size // outer
        return replace(self, stride=self.stride * inner, size=outer), replace(self, size=inner)


@dataclass(frozen=True, slots=True)
class Route:
    """How a tensor comes from a layer: the factors of each of its dims, outermost first."""

    layer: int
    output: int
    dims: tuple[tuple[Factor, ...], ...]


def leave(layer: int, output: int, nest: Nest, shape: Sequence[int]) -> Route:
    """The route of a layer's own output."""
    dims = []
    for dim, (size, owners) in enumerate(zip(shape, nest.outputs[output], strict=True)):
        sizes = [nest.dims[owner].size for owner in owners]
        if math.prod(sizes) != size:  # Both directions of a recurrent layer, side by side.
            owners, sizes = owners[:1], [size]
        strides = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
        parts = zip(owners, strides, sizes, strict=True)
        dims.append(tuple(Factor(dim, owner, stride, one) for owner, stride, one in parts if one > 1))
    return Route(layer, output, tuple(dims))


def carry(route: Route, space: IterationSpace, position: int) -> Route | None:
    """The route behind an op with one output that only moves whole factors; None if it does more.

    Args:
        route: of the tensor that the op takes.
        space: the op's iteration space.
        position: which of its inputs that tensor is.
    """
    found: dict[int, tuple[Factor, ...]] = {}
    for factors, dims in zip(route.dims, space.inputs[position].dims, strict=True):
        parts = match(factors, [space.sizes[dim] for dim in dims])
        if parts is None:
            return None
        found |= dict(zip(dims, parts, strict=True))
    wanted = [dim for dims in space.outputs[0].dims for dim in dims]
    if sorted(wanted) != sorted(found):
        return None
    dims = tuple(tuple(factor for dim in dims for factor in found[dim]) for dims in space.outputs[0].dims)
    return Route(route.layer, route.output, dims)


def match(factors: Sequence[Factor], sizes: Sequence[int]) -> list[tuple[Factor, ...]] | None:
    """The factors in groups whose products are these sizes, cut where needed; None if they do not fit."""
    left = list(reversed(factors))
    groups: list[tuple[Factor, ...]] = []
    for size in sizes:
        group: list[Factor] = []
        while size > 1:
            if not left:
                return None
            factor = left.pop()
            if factor.size > size:
                if factor.size % size:
                    return None
                factor, rest = factor.split(size)
                left.append(rest)
            if size % factor.size:
                return None
            group.append(factor)
            size //= factor.size
        groups.append(tuple(group))
    return None if left else groups


def arrive(route: Route, target: int, nest: Nest, placement: Placement) -> Edge:
    """The edge from the route's layer to one that has this tensor among its inputs."""
    factors: list[Factor] = []
    needed: list[Group] = []
    for found, dims in zip(route.dims, placement, strict=True):
        parts = match(found, [nest.dims[dim].size for dim in dims])
        if parts is None:  # The dims do not have the sizes of the tensor's: windows, or wider inputs.
            pairs = [(dims, found)]
        else:
            pairs = [((dim,), part) for dim, part in zip(dims, parts, strict=True)]
        for cutting, cut in pairs:
            needed.append(Group(cutting, tuple(range(len(factors), len(factors) + len(cut)))))
            factors += cut
    return Edge(
        source=route.layer,
        target=target,
        factors=tuple(factor.size for factor in factors),
        held=_held(factors),
        needed=tuple(group for group in needed if group.factors),
    )


def _held(factors: Sequence[Factor]) -> tuple[Group, ...]:
    """How the dims of the layer that left them cut the factors."""
    owned: dict[int, list[int]] = {}
    for index in sorted(range(len(factors)), key=lambda index: -factors[index].stride):
        owned.setdefault(factors[index].owner, []).append(index)
    return tuple(Group((owner,), tuple(indices)) for owner, indices in owned.items())
