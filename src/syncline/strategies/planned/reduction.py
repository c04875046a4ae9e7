"""Adding up gradients over ranks while backward still runs.

Gradients that ranks have summands of are reduced in units: buckets of small ones, large ones by themselves.
Units are started in one order on all ranks, as soon as all their gradients are there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from syncline._torch_compat import copy_all
from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.ranks import LiveMesh

_PURPOSE = "gradients"
FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is small, so that sending begins early."""


class Unit(Protocol):
    """Gradients that are reduced together."""

    members: Sequence[PlacedParameter]
    each_time: bool
    """Whether it is reduced after every micro-batch, and not only after the last."""

    def start(self) -> None:
        """Begin to reduce."""
        ...

    def finish(self) -> None:
        """Wait, and put the results where the optimizer finds them."""
        ...


class GradientReducer:
    """Starts units from backward's hooks, and waits for them at the end of backward."""

    def __init__(self, placed: Iterable[PlacedParameter], mesh: LiveMesh, *, bucket_bytes: int) -> None:
        """`placed`: in the order in which backward is expected to give gradients."""
        self._units = _make_units(list(placed), mesh, bucket_bytes)
        self._missing = [0] * len(self._units)
        self._active: list[int] = []
        self._next = 0
        for number, unit in enumerate(self._units):
            for one in unit.members:
                one.leaf.register_post_accumulate_grad_hook(_ready_hook(self, number, one))

    def expect(self, *, last: bool) -> None:
        """Get ready for a backward pass; `last` if it is the last of the step's micro-batches."""
        self._active = [number for number, unit in enumerate(self._units) if last or unit.each_time]
        for number in self._active:
            self._missing[number] = len(self._units[number].members)
        self._next = 0

    def finish(self) -> None:
        """Wait for all that was expected; a parameter that got no gradient counts as zeros."""
        for number in self._active[self._next :]:
            self._units[number].start()
        for number in self._active:
            self._units[number].finish()
        self._active, self._next = [], 0

    def ready(self, number: int) -> None:
        """Take in that a gradient of a unit is there, and start the units whose turn it is."""
        self._missing[number] -= 1
        while self._next < len(self._active) and self._missing[self._active[self._next]] == 0:
            self._units[self._active[self._next]].start()
            self._next += 1


def _ready_hook(reducer: GradientReducer, number: int, one: PlacedParameter) -> Callable[[Tensor], None]:
    # Weak: autograd keeps a hook as long as the leaf, where the garbage collector does not see what it holds,
    # and the leaf, the mesh and its process groups would never go.
    to_reducer, to_one = weakref.ref(reducer), weakref.ref(one)

    def ready(_leaf: Tensor) -> None:
        alive, parameter = to_reducer(), to_one()
        if alive is not None and parameter is not None:
            parameter.free()
            alive.ready(number)

    return ready


class _Bucket:
    """Replicated parameters whose gradients share one all-reduce."""

    each_time = False

    def __init__(self, members: Sequence[PlacedParameter], mesh: LiveMesh) -> None:
        self.members = members
        self._group = mesh.group(members[0].placing.summed_over, _PURPOSE)
        self._flat: Tensor | None = None
        self._views: list[Tensor] = []
        self._work: dist.Work | None = None

    def start(self) -> None:
        if len(self.members) == 1:
            total = _gradient(self.members[0])
            self.members[0].leaf.grad = total
        else:
            total = self._fill()
        self._work = dist.all_reduce(total, group=self._group, async_op=True)

    def finish(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._work = None

    def _fill(self) -> Tensor:
        if self._flat is None:
            leaves = [one.leaf for one in self.members]
            self._flat = leaves[0].new_empty(sum(leaf.numel() for leaf in leaves), requires_grad=False)
            parts = self._flat.split([leaf.numel() for leaf in leaves])
            self._views = [part.view_as(leaf) for part, leaf in zip(parts, leaves, strict=True)]
        given: list[Tensor] = []
        filled: list[Tensor] = []
        for one, view in zip(self.members, self._views, strict=True):
            gradient = one.leaf.grad
            if gradient is None:
                view.zero_()
            else:
                given.append(gradient)
                filled.append(view)
            one.leaf.grad = view
        if given:
            copy_all(filled, given)
        return self._flat


class _Share:
    """A parameter of whose gradient each rank needs its share only."""

    def __init__(self, one: PlacedParameter, mesh: LiveMesh) -> None:
        share = one.placing.share
        if share is None:
            raise ValueError(f"{one.placing.name} is not cut")
        self.members: Sequence[PlacedParameter] = [one]
        self.each_time = one.is_temporary
        self._share = share
        self._mesh = mesh
        summed = one.placing.summed_over
        self._scattered = tuple(axis for axis in share.axes if axis in summed)
        self._scatter = mesh.group(self._scattered, _PURPOSE) if self._scattered else None
        self._rest = tuple(axis for axis in summed if axis not in share.axes)
        self._reduce = mesh.group(self._rest, _PURPOSE) if self._rest else None
        self._out: Tensor | None = None
        self._given: Tensor | None = None
        self._work: dist.Work | None = None

    def start(self) -> None:
        gradient = _gradient(self.members[0])
        self.members[0].leaf.grad = None
        pieces = self._own_pieces(gradient)
        self._out = torch.empty_like(pieces[0])
        if self._scatter is None:
            self._out.copy_(pieces[0])
            return
        self._given = pieces.flatten(0, 1)
        self._work = dist.reduce_scatter_single(self._out, self._given, group=self._scatter, async_op=True)

    def _own_pieces(self, gradient: Tensor) -> Tensor:
        """The pieces that this rank's group reduces, one for each of its members, stacked."""
        share, mesh = self._share, self._mesh
        sizes = [mesh.sizes[axis] for axis in share.axes]
        pieces = gradient.unflatten(share.dim, (*sizes, -1))
        for place, axis in enumerate(share.axes):
            if axis not in self._scattered:
                pieces = pieces.narrow(share.dim + place, mesh.coordinates[axis], 1)
        cut = pieces.flatten(share.dim, share.dim + len(sizes) - 1) if len(sizes) > 1 else pieces
        return cut.movedim(share.dim, 0).contiguous()

    def finish(self) -> None:
        if self._work is not None:
            self._work.wait()
        out, self._work, self._given, self._out = self._out, None, None, None
        if out is None:
            return
        if self._reduce is not None:
            dist.all_reduce(out, group=self._reduce)
        stored = self.members[0].stored
        stored.grad = out if stored.grad is None else stored.grad + out


def _gradient(one: PlacedParameter) -> Tensor:
    gradient = one.leaf.grad
    return (
        torch.zeros(one.leaf.shape, dtype=one.leaf.dtype, device=one.leaf.device)
        if gradient is None
        else gradient
    )


def _make_units(placed: Sequence[PlacedParameter], mesh: LiveMesh, bucket_bytes: int) -> list[Unit]:
    units: list[Unit] = []
    filling: dict[tuple[object, ...], list[PlacedParameter]] = {}
    limits: dict[tuple[object, ...], int] = {}
    for one in placed:
        if one.placing.share is not None:
            units.append(_Share(one, mesh))
            continue
        if not one.placing.summed_over:
            continue
        key = (one.placing.summed_over, one.leaf.dtype)
        filling.setdefault(key, []).append(one)
        held = sum(each.leaf.numel() * each.leaf.element_size() for each in filling[key])
        if held >= limits.get(key, min(FIRST_BUCKET_BYTES, bucket_bytes)):
            limits[key] = bucket_bytes
            units += _buckets(filling.pop(key), mesh, bucket_bytes)
    for members in filling.values():
        units += _buckets(members, mesh, bucket_bytes)
    return units


def _buckets(members: list[PlacedParameter], mesh: LiveMesh, bucket_bytes: int) -> list[Unit]:
    """One bucket; but a large gradient goes by itself, as it is, without a copy."""
    last = members[-1]
    if len(members) > 1 and last.leaf.numel() * last.leaf.element_size() >= bucket_bytes // 4:
        return [_Bucket(members[:-1], mesh), _Bucket([last], mesh)]
    return [_Bucket(members, mesh)]
