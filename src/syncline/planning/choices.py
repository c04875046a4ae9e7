"""The shardings that a search weighs for one op, and the states in which they leave its tensors.

A sharding gives each axis to one iteration dim of the op, or to none (the op is then repeated over the
axis). What is legal follows from the op's iteration space: only dims that can be split, into parts that
divide them evenly, and such that every tensor that ops share is cut into contiguous blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from syncline.graph.opgraph import Op, OpGraph
from syncline.graph.space import DimKind, IterationSpace, Operand
from syncline.planning.axes import SearchAxes
from syncline.planning.roles import splittable_dims
from syncline.planning.states import PARTIAL, WHOLE, States

UNUSED = -1
Assignments = npt.NDArray[np.int8]
"""One sharding a row: for each axis the iteration dim that it splits, or UNUSED."""


def enumerate_assignments(
    graph: OpGraph, op: Op, axes: SearchAxes, extra: Sequence[tuple[int, ...]] = ()
) -> Assignments:
    """The shardings of an op that are worth weighing, in a fixed order, and the given ones.

    An op uses every axis that it can: repeating work on several devices is weighed only where no dim can be
    split further and, for ops without products, over axes of the innermost level, where gathering is cheap.
    """
    legal = legal_assignments(graph, op, axes)
    inner = [axis.level == 0 and not op.space.flop_terms for axis in axes.axes]
    most = _used(axes, legal).max()
    chosen = legal[_used(axes, legal, idle=inner) == most]
    given = list(dict.fromkeys(map(tuple, extra)))
    more = np.array(given, dtype=np.int8).reshape(len(given), len(axes.axes))
    new = ~(more[:, None, :] == chosen[None, :, :]).all(axis=2).any(axis=1)
    return np.concatenate([chosen, more[new & _divides(op.space, axes, more)]])


def legal_assignments(graph: OpGraph, op: Op, axes: SearchAxes) -> Assignments:
    """All shardings of an op whose parts are equal, whether or not they use every device."""
    count = len(axes.axes)
    bins = np.array([UNUSED, *splittable_dims(graph, op)], dtype=np.int8)
    places = np.indices((len(bins),) * count).reshape(count, -1).T if count else np.zeros((1, 0), dtype=int)
    every = bins[places]
    return every[_divides(op.space, axes, every)]


def widest(axes: SearchAxes, assignments: Assignments) -> Assignments:
    """Those that share the work among most devices."""
    used = _used(axes, assignments)
    return assignments[used == used.max(initial=0)]


def output_states(space: IterationSpace, assignments: Assignments, output: int) -> States:
    """The states of one of the op's outputs under each sharding."""
    summed = [index for index, dim in enumerate(space.dims) if dim.kind is DimKind.SUM]
    lacking = np.where(np.isin(assignments, summed), PARTIAL, WHOLE)
    return _operand_states(space.outputs[output], assignments, lacking)


def input_states(space: IterationSpace, assignments: Assignments, place: int) -> States:
    """The states of one of the op's inputs under each sharding; PARTIAL speaks of its gradient."""
    lacking = np.where(assignments == UNUSED, WHOLE, PARTIAL)
    return _operand_states(space.inputs[place], assignments, lacking)


def parts_of(space: IterationSpace, axes: SearchAxes, assignments: Assignments) -> npt.NDArray[np.float64]:
    """Into how many parts each iteration dim (columns) is cut by each sharding (rows)."""
    parts = np.ones((len(assignments), len(space.dims)))
    for column, size in enumerate(axes.sizes):
        rows = np.flatnonzero(assignments[:, column] != UNUSED)
        parts[rows, assignments[rows, column]] *= size
    return parts


def _operand_states(operand: Operand, assignments: Assignments, lacking: npt.NDArray[np.int64]) -> States:
    states = lacking.astype(np.int8)
    for dim in np.unique(assignments):
        place = operand.position(int(dim)) if dim != UNUSED else None
        if place is not None:
            states[assignments == dim] = place[0]
    return states


def _divides(space: IterationSpace, axes: SearchAxes, assignments: Assignments) -> npt.NDArray[np.bool_]:
    sizes = np.array(space.sizes, dtype=np.float64)
    return (sizes % parts_of(space, axes, assignments) == 0).all(axis=1)


def _used(
    axes: SearchAxes, assignments: Assignments, idle: Sequence[bool] | None = None
) -> npt.NDArray[np.int64]:
    """How many devices share the work, those on the axes that may be idle counted in any case."""
    busy = assignments != UNUSED
    if idle is not None:
        busy = busy | np.array(idle, dtype=bool)
    return np.where(busy, np.array(axes.sizes, dtype=np.int64), 1).prod(axis=1)
