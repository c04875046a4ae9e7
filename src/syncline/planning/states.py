"""How a tensor lies on the axes of a mesh, and what it takes to change that.

On each axis a tensor is in one of these states, coded as a number:

    d >= 0   its dim d is cut over the axis
    WHOLE    every device has the same
    PARTIAL  the devices have summands of it

As an op's *output* these are its forward states. As an op's *input*, WHOLE and PARTIAL both mean that every
device has the whole tensor; they say what the op makes of its gradient: the same on every device (the op is
repeated on them), or a summand on each (the op splits a dim over the axis that this input lacks). So one
function, from a state to another, prices both directions: forward from the producer's state to the
consumer's, backward from the consumer's (of the gradient) to the producer's.

    from \\ to      cut d'             WHOLE           PARTIAL
    cut d          all-to-all (d≠d')  all-gather      nothing (zeros around it)
    WHOLE          nothing (slice)    nothing         nothing (one keeps it)
    PARTIAL        reduce-scatter     all-reduce      nothing
"""

from __future__ import annotations

import functools
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from syncline.cluster.collectives import Collective, collective_s
from syncline.planning.axes import SearchAxes

WHOLE = -1
PARTIAL = -2

States = npt.NDArray[np.int8]
"""One layout a row, one axis a column."""
Floats = npt.NDArray[np.float64]


def redistribute_s(axes: SearchAxes, nbytes: float, source: States, target: States) -> Floats:
    """Seconds to bring a tensor of `nbytes` from each source layout (rows) to each target layout (columns).

    Slices come first since they cost nothing and leave less to send, then reduce-scatter, all-to-all and
    all-reduce, and gathering last. What happens on an axis is one of seven moves, so all pairs of layouts
    share one small table over the moves on all axes.
    """
    if not axes.axes or nbytes <= 0:
        return np.zeros((len(source), len(target)))
    code = np.zeros((len(source), len(target)), dtype=np.int64)
    for axis in range(len(axes.axes)):
        code *= len(_Move)
        code += _MOVES[source[:, axis, None], target[None, :, axis]]
    return moves_s(axes, nbytes)[code]


class _Move(IntEnum):
    """What happens on one axis."""

    NONE = 0
    STAY_CUT = 1
    SLICE = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    ALL_REDUCE = 5
    ALL_GATHER = 6


def _find_moves() -> npt.NDArray[np.int64]:
    """The move from each state to each; negative states index from the end, as they are coded."""
    moves = np.full((_MAX_DIMS + 2, _MAX_DIMS + 2), _Move.ALL_TO_ALL, dtype=np.int64)
    np.fill_diagonal(moves, _Move.STAY_CUT)
    moves[:_MAX_DIMS, WHOLE] = _Move.ALL_GATHER
    moves[:_MAX_DIMS, PARTIAL] = _Move.STAY_CUT
    moves[WHOLE, :] = _Move.SLICE
    moves[PARTIAL, :] = _Move.REDUCE_SCATTER
    moves[WHOLE, [WHOLE, PARTIAL]] = _Move.NONE
    moves[PARTIAL, WHOLE] = _Move.ALL_REDUCE
    moves[PARTIAL, PARTIAL] = _Move.NONE
    return moves


_MAX_DIMS = 12
_MOVES = _find_moves()


@functools.lru_cache(maxsize=512)
def moves_s(axes: SearchAxes, nbytes: float) -> Floats:
    """Seconds for every combination of moves, one for each axis, the first axis most significant."""
    count = len(axes.axes)
    combined = np.indices((len(_Move),) * count).reshape(count, -1)
    weights = (1 << np.arange(count))[:, None]
    masks = {move: ((combined == move) * weights).sum(axis=0) for move in _Move}
    members = np.array([axes.members(mask) for mask in range(1 << count)], dtype=np.float64)
    cut = masks[_Move.STAY_CUT] | masks[_Move.ALL_TO_ALL] | masks[_Move.ALL_GATHER] | masks[_Move.SLICE]
    held = nbytes / members[cut]
    total = _collectives_s(axes, "reduce_scatter", masks[_Move.REDUCE_SCATTER], held)
    held = held / members[masks[_Move.REDUCE_SCATTER]]
    total += _collectives_s(axes, "all_to_all", masks[_Move.ALL_TO_ALL], held)
    total += _collectives_s(axes, "all_reduce", masks[_Move.ALL_REDUCE], held)
    held = held * members[masks[_Move.ALL_GATHER]]
    return total + _collectives_s(axes, "all_gather", masks[_Move.ALL_GATHER], held)


def _collectives_s(
    axes: SearchAxes, kind: Collective, masks: npt.NDArray[np.int64], nbytes: Floats
) -> Floats:
    seconds = np.zeros(masks.shape)
    for mask in np.unique(masks):
        if mask:
            chosen = masks == mask
            seconds[chosen] = collective_s(axes.cluster, kind, axes.spans(int(mask)), nbytes[chosen])
    return seconds


def whole_for_partial(states: States) -> States:
    """The layouts with every PARTIAL replaced by WHOLE."""
    return np.where(states == PARTIAL, WHOLE, states).astype(np.int8)


def local_fraction(axes: SearchAxes, states: States) -> Floats:
    """For each layout, the part of the tensor that one device has."""
    sizes = np.array(axes.sizes, dtype=np.float64)
    return 1.0 / np.where(states >= 0, sizes, 1.0).prod(axis=1)


def axes_mask(states: States, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """For each layout, the set of axes where `wanted` holds, as a bit mask."""
    return (wanted * (1 << np.arange(states.shape[1]))).sum(axis=1)
