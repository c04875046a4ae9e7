"""Where parameters and buffers live: this rank's part of each, and the DTensor that stands for the whole.

A parameter has two tensors. `leaf` is what the program computes with, in the layout that its op wants.
`stored` is what the optimizer updates: the leaf itself, or where the plan cuts the optimizer's state further,
one rank's share of it. The copies of a leaf are on the axes on which it is not cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from syncline.graph.shards import Part, cut
from syncline.graph.space import Operand
from syncline.planning.parameter_costs import Keeping
from syncline.planning.states import PARTIAL
from syncline.strategies.planned.layout import Layout, axes_cutting, axes_in
from syncline.strategies.planned.ranks import LiveMesh
from syncline.workloads.deferred.weights import Box

SMALL = 1 << 14
"""Parameters of fewer elements are kept whole: sending them costs more than cutting them saves."""


@dataclass(frozen=True, slots=True)
class Share:
    """How the copies of a leaf are cut once more."""

    dim: int
    axes: tuple[int, ...]
    """Over which of the axes that have copies, in mesh order."""


@dataclass(frozen=True, slots=True)
class Placing:
    """How a parameter or buffer lies on the mesh."""

    name: str
    shape: tuple[int, ...]
    layout: Layout
    """Of the leaf; where it says PARTIAL, ranks have summands of the gradient."""
    operand: Operand | None = None
    """Set when the parts are strided: the dims of the one op that uses it."""
    sizes: tuple[int, ...] = ()
    """Of that op's iteration dims."""
    split: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Of that op, the axes that split each dim."""
    keep: Keeping = Keeping.REPLICATED
    share: Share | None = None

    @property
    def is_strided(self) -> bool:
        """Whether a rank's part is no contiguous block of the whole."""
        return self.operand is not None

    @property
    def summed_over(self) -> tuple[int, ...]:
        """The axes over which gradients have to be added up."""
        return axes_in(self.layout, PARTIAL)

    @property
    def cut_by(self) -> tuple[int, ...]:
        """The axes that cut what is stored."""
        own = axes_cutting(self.layout)
        return tuple(sorted({*own, *(self.share.axes if self.share else ())}))

    def parts(self, mesh: LiveMesh) -> dict[int, Part]:
        """Of the iteration dims of a strided parameter, what this rank has."""
        return {
            dim: Part.of(self.sizes[dim], mesh.members(axes), mesh.place(axes)) for dim, axes in self.split
        }

    def cut_leaf(self, whole: Tensor, mesh: LiveMesh) -> Tensor:
        """This rank's leaf of a whole tensor, a view where it can be one."""
        if self.operand is not None:
            return cut(whole, self.operand, self.sizes, self.parts(mesh))
        for dim in range(whole.ndim):
            whole = _narrowed(whole, dim, axes_in(self.layout, dim), mesh)
        return whole

    def stored_box(self, mesh: LiveMesh) -> Box:
        """Which elements of the whole this rank stores."""
        if self.operand is not None:
            factors = [dim for dims in self.operand.dims for dim in dims]
            box = Box.whole([self.sizes[dim] for dim in factors])
            for dim, part in self.parts(mesh).items():
                box = box.narrow(factors.index(dim), part.start, part.size)
            return box
        box = Box.whole(self.shape)
        for dim in range(len(self.shape)):
            box = _narrowed_box(box, dim, axes_in(self.layout, dim), mesh)
        return box if self.share is None else _narrowed_box(box, self.share.dim, self.share.axes, mesh)

    def cut_into(self, whole: Tensor, leaf: Tensor, mesh: LiveMesh) -> None:
        """Put this rank's leaf of a strided parameter at its place in a whole tensor."""
        if self.operand is None:
            raise ValueError(f"{self.name} is not strided")
        parts = self.parts(mesh)
        factors = [dim for dims in self.operand.dims for dim in dims]
        place = whole.view([self.sizes[dim] for dim in factors])
        for dim, part in parts.items():
            place = place.narrow(factors.index(dim), part.start, part.size)
        place.copy_(leaf.reshape(place.shape))

    def cut_share(self, leaf: Tensor, mesh: LiveMesh) -> Tensor:
        """This rank's share of its leaf, a view."""
        return leaf if self.share is None else _narrowed(leaf, self.share.dim, self.share.axes, mesh)

    def placements(self) -> list[Placement]:
        """What is stored, in the words of DTensor."""
        shared = self.share.axes if self.share else ()
        dim = self.share.dim if self.share else -1
        found: list[Placement] = []
        for axis, state in enumerate(self.layout):
            found.append(Shard(state) if state >= 0 else Shard(dim) if axis in shared else Replicate())
        return found or [Replicate()]

    def as_dtensor(self, stored: Tensor, mesh: LiveMesh) -> DTensor:
        """The whole tensor that is made of all ranks' stored ones."""
        return DTensor.from_local(
            stored,
            mesh.device_mesh,
            self.placements(),
            run_check=False,
            shape=torch.Size(self.shape),
            stride=_contiguous_strides(self.shape),
        )


def choose_share(
    shape: Sequence[int], layout: Layout, keep: Keeping, mesh: LiveMesh, inner: Sequence[int]
) -> Share | None:
    """How a leaf's copies are cut under a way of keeping; None where they stay whole.

    Args:
        shape: Of the leaf.
        layout: Of the leaf.
        keep: What the plan says.
        mesh: The ranks.
        inner: The axes inside a node.
    """
    axes = tuple(axis for axis, state in enumerate(layout) if state < 0 and mesh.sizes[axis] > 1)
    if keep is Keeping.SHARDED_IN_NODE:
        axes = tuple(axis for axis in axes if axis in inner)
    if keep is Keeping.REPLICATED or not axes or torch.Size(shape).numel() < SMALL:
        return None
    parts = mesh.members(axes)
    for dim, size in enumerate(shape):
        cutting = axes_in(layout, dim)
        # DTensor cuts a dim in mesh order, so that shares must come inside of what cuts it already.
        if size % parts == 0 and (not cutting or max(cutting) < min(axes)):
            return Share(dim, axes)
    return None


def _narrowed(tensor: Tensor, dim: int, axes: Sequence[int], mesh: LiveMesh) -> Tensor:
    if not axes:
        return tensor
    size = tensor.shape[dim] // mesh.members(axes)
    return tensor.narrow(dim, mesh.place(axes) * size, size)


def _narrowed_box(box: Box, dim: int, axes: Sequence[int], mesh: LiveMesh) -> Box:
    size = box.sizes[dim] // mesh.members(axes)
    return box.narrow(dim, mesh.place(axes) * size, size)


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)
