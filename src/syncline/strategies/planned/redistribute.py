"""Changing the layout of a tensor between its maker and its user, with autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.strategies.planned.layout import Kind, Layout, Move, find_moves, whole_for_partial
from syncline.strategies.planned.ranks import LiveMesh

Change = Callable[[Tensor], Tensor]


def make_change(mesh: LiveMesh, source: Layout, target: Layout) -> Change | None:
    """A function that brings a local tensor from one layout to another; None where nothing changes."""
    changes = [_CHANGES[move.kind](mesh, move) for move in find_moves(source, target)]
    if not changes:
        return None
    if len(changes) == 1:
        return changes[0]

    def change(tensor: Tensor) -> Tensor:
        for one in changes:
            tensor = one(tensor)
        return tensor

    return change


class Redistribution(nn.Module):
    """What an edge does to a tensor on its way, and to its gradient on the way back.

    The user's layout speaks of the gradient where it says PARTIAL: forward the tensor is whole there.
    """

    def __init__(
        self, mesh: LiveMesh, source: Layout, target: Layout, *, gradient_may_be_partial: bool = False
    ) -> None:
        """`gradient_may_be_partial`: the source is a layout of the same kind, that asks for summands where it
        says PARTIAL, and not the layout in which an op gives its output."""
        super().__init__()
        self._forward = make_change(
            mesh, self._given(source, gradient_may_be_partial), whole_for_partial(target)
        )
        wanted = source if gradient_may_be_partial else whole_for_partial(source)
        self._backward = make_change(mesh, target, wanted)

    @staticmethod
    def _given(source: Layout, gradient_may_be_partial: bool) -> Layout:
        return whole_for_partial(source) if gradient_may_be_partial else source

    @property
    def is_needed(self) -> bool:
        """Whether it does anything in some direction."""
        return self._forward is not None or self._backward is not None

    def forward(self, tensor: Tensor) -> Tensor:
        """The tensor as its user wants it."""
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Redistribute.apply(tensor, self._forward, self._backward)
        return tensor if self._forward is None else self._forward(tensor)


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forward: Change | None, backward: Change | None) -> Tensor:
        ctx.change = backward
        return tensor.view_as(tensor) if forward is None else forward(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return (gradient if ctx.change is None else ctx.change(gradient)), None, None


def _slice(mesh: LiveMesh, move: Move) -> Change:
    parts, place = mesh.members(move.axes), mesh.place(move.axes)

    def change(tensor: Tensor) -> Tensor:
        size = tensor.shape[move.dim] // parts
        # A view would keep the whole tensor alive, and ops are slower on strided memory.
        return tensor.narrow(move.dim, place * size, size).contiguous()

    return change


def _reduce_scatter(mesh: LiveMesh, move: Move) -> Change:
    group, parts = mesh.group(move.axes), mesh.members(move.axes)

    def change(tensor: Tensor) -> Tensor:
        stacked = _pieces_first(tensor, move.dim, parts)
        out = torch.empty_like(stacked[0])
        dist.reduce_scatter_single(out, stacked.flatten(0, 1) if out.ndim else stacked, group=group)
        return out

    return change


def _all_to_all(mesh: LiveMesh, move: Move) -> Change:
    group, parts = mesh.group(move.axes), mesh.members(move.axes)

    def change(tensor: Tensor) -> Tensor:
        given = _pieces_first(tensor, move.to_dim, parts)
        taken = torch.empty_like(given)
        dist.all_to_all_single(taken, given, group=group)
        return _pieces_joined(taken, move.dim)

    return change


def _all_reduce(mesh: LiveMesh, move: Move) -> Change:
    group = mesh.group(move.axes)

    def change(tensor: Tensor) -> Tensor:
        total = tensor.contiguous()
        # The summand may be needed by others (its maker's backward), so the sum gets memory of its own.
        total = total.clone() if total is tensor else total
        dist.all_reduce(total, group=group)
        return total

    return change


def _all_gather(mesh: LiveMesh, move: Move) -> Change:
    group, parts = mesh.group(move.axes), mesh.members(move.axes)

    def change(tensor: Tensor) -> Tensor:
        own = tensor.contiguous()
        taken = own.new_empty((parts, *own.shape))
        dist.all_gather_single(taken.flatten(0, 1), own, group=group)
        return _pieces_joined(taken, move.dim)

    return change


def _pad(mesh: LiveMesh, move: Move) -> Change:
    parts, place = mesh.members(move.axes), mesh.place(move.axes)

    def change(tensor: Tensor) -> Tensor:
        size = tensor.shape[move.dim]
        shape = [*tensor.shape]
        shape[move.dim] = size * parts
        padded = tensor.new_zeros(shape)
        padded.narrow(move.dim, place * size, size).copy_(tensor)
        return padded

    return change


def _keep_first(mesh: LiveMesh, move: Move) -> Change:
    first = mesh.place(move.axes) == 0

    def change(tensor: Tensor) -> Tensor:
        return tensor if first else torch.zeros_like(tensor)

    return change


def _pieces_first(tensor: Tensor, dim: int, parts: int) -> Tensor:
    """A tensor cut along a dim into equal pieces, which are stacked in a new first dim."""
    shape = tensor.shape
    seen = tensor.reshape(*shape[:dim], parts, shape[dim] // parts, *shape[dim + 1 :])
    return seen.movedim(dim, 0).contiguous()


def _pieces_joined(pieces: Tensor, dim: int) -> Tensor:
    """Pieces that are stacked in the first dim, joined along a dim."""
    if dim == 0:
        return pieces.flatten(0, 1)
    joined: Sequence[int] = [*pieces.shape[1 : dim + 1], -1, *pieces.shape[dim + 2 :]]
    return pieces.movedim(0, dim).reshape(joined)


_CHANGES: dict[Kind, Callable[[LiveMesh, Move], Change]] = {
    Kind.SLICE: _slice,
    Kind.REDUCE_SCATTER: _reduce_scatter,
    Kind.ALL_TO_ALL: _all_to_all,
    Kind.ALL_REDUCE: _all_reduce,
    Kind.ALL_GATHER: _all_gather,
    Kind.PAD: _pad,
    Kind.KEEP_FIRST: _keep_first,
}
