"""How a tensor gets from one layout to another: the moves, in the order in which they cost least.

A layout gives each mesh axis a state (see `planning.states`): the tensor dim that it cuts, WHOLE, or PARTIAL.
Axes that cut the same dim cut it in mesh order, the outermost first. So while a layout changes, a dim can
only be cut further from the inside, and only its innermost cut can be undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from syncline.planning.states import PARTIAL, WHOLE

Layout: TypeAlias = tuple[int, ...]
"""For each mesh axis, from the outermost, the state of a tensor."""


class Kind(StrEnum):
    """What a move does."""

    SLICE = "slice"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    PAD = "pad"
    """A cut dim becomes whole, with zeros where other devices have it: summands."""
    KEEP_FIRST = "keep first"
    """All but the first device of the axes have zeros: summands."""


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a layout."""

    kind: Kind
    axes: tuple[int, ...]
    """Over which axes, in mesh order."""
    dim: int = -1
    """The tensor dim that is cut, or was."""
    to_dim: int = -1
    """Of an all-to-all, the dim that is cut afterwards."""


def find_moves(source: Layout, target: Layout) -> tuple[Move, ...]:
    """The moves from one layout to another; none where they are the same."""
    search = _Search(source, target)
    moves: list[Move] = []
    while (move := search.next()) is not None:
        moves.append(_joined(moves, move))
    return tuple(moves)


def whole_for_partial(layout: Layout) -> Layout:
    """The layout with every PARTIAL replaced by WHOLE."""
    return tuple(WHOLE if state == PARTIAL else state for state in layout)


def axes_in(layout: Layout, state: int) -> tuple[int, ...]:
    """The axes on which a tensor is in this state."""
    return tuple(axis for axis, found in enumerate(layout) if found == state)


def axes_cutting(layout: Layout) -> tuple[int, ...]:
    """The axes that cut some dim of a tensor."""
    return tuple(axis for axis, state in enumerate(layout) if state >= 0)


def _joined(moves: list[Move], move: Move) -> Move:
    """The move, or one that does it together with the one before, which is then taken out."""
    last = moves[-1] if moves else None
    if last is None or last.kind is not move.kind or (last.dim, last.to_dim) != (move.dim, move.to_dim):
        return move
    if move.kind in (Kind.SLICE, Kind.REDUCE_SCATTER):
        moves.pop()
        return Move(move.kind, (*last.axes, *move.axes), move.dim)
    if move.kind is Kind.ALL_GATHER:
        moves.pop()
        return Move(move.kind, (*move.axes, *last.axes), move.dim)
    return move


class _Search:
    """A layout on its way to another."""

    def __init__(self, source: Layout, target: Layout) -> None:
        self._target = target
        self._state = list(source)
        dims = {state for state in (*source, *target) if state >= 0}
        self._cuts = {dim: list(axes_in(source, dim)) for dim in dims}
        self._wanted = {dim: axes_in(target, dim) for dim in dims}

    def next(self) -> Move | None:
        """The next move, made: what costs nothing first, and what sends less before what sends more."""
        return (
            self._cut_further(WHOLE, Kind.SLICE)
            or self._cut_further(PARTIAL, Kind.REDUCE_SCATTER)
            or self._undo(gathering=False)
            or self._all_reduce()
            or self._undo(gathering=True)
            or self._keep_first()
        )

    def _cut_further(self, state: int, kind: Kind) -> Move | None:
        for dim in self._wanted:
            axis = self._next_cut(dim)
            if axis is not None and self._state[axis] == state:
                self._cuts[dim].append(axis)
                self._state[axis] = dim
                return Move(kind, (axis,), dim)
        return None

    def _next_cut(self, dim: int) -> int | None:
        """The axis that has to cut a dim next, if all that has to cut it before does."""
        cuts, wanted = self._cuts[dim], self._wanted[dim]
        fits = len(cuts) < len(wanted) and tuple(cuts) == wanted[: len(cuts)]
        return wanted[len(cuts)] if fits else None

    def _undo(self, *, gathering: bool) -> Move | None:
        """Undo a cut that is in the way: by an all-to-all or with zeros, or, if need be, by gathering."""
        for dim, cuts in self._cuts.items():
            if tuple(cuts) == self._wanted[dim][: len(cuts)]:
                continue
            axis = cuts[-1]
            to = self._target[axis]
            if to == PARTIAL and not gathering:
                return self._undone(Kind.PAD, axis, dim, PARTIAL)
            if to >= 0 and to != dim and self._next_cut(to) == axis and not gathering:
                self._cuts[to].append(axis)
                return self._undone(Kind.ALL_TO_ALL, axis, dim, to)
            if gathering:
                return self._undone(Kind.ALL_GATHER, axis, dim, WHOLE)
        return None

    def _undone(self, kind: Kind, axis: int, dim: int, state: int) -> Move:
        self._cuts[dim].remove(axis)
        self._state[axis] = state
        return Move(kind, (axis,), dim, state if kind is Kind.ALL_TO_ALL else -1)

    def _all_reduce(self) -> Move | None:
        return self._change(PARTIAL, WHOLE, Kind.ALL_REDUCE)

    def _keep_first(self) -> Move | None:
        return self._change(WHOLE, PARTIAL, Kind.KEEP_FIRST)

    def _change(self, before: int, after: int, kind: Kind) -> Move | None:
        axes = tuple(axis for axis in axes_in(tuple(self._state), before) if self._target[axis] == after)
        for axis in axes:
            self._state[axis] = after
        return Move(kind, axes) if axes else None
