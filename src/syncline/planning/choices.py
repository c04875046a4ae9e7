"""The shardings that a search weighs for one op, and the states in which they leave its tensors.

A sharding gives each axis to one iteration dim of the op, or to none (the op is then repeated over the
axis). What is legal follows from the op's iteration space: only dims that can be split, into parts that
divide them evenly, and such that every tensor is cut into contiguous blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from syncline.graph.opgraph import Op
from syncline.graph.space import DimKind, IterationSpace, Operand
from syncline.planning.axes import SearchAxes
from syncline.planning.states import PARTIAL, WHOLE, States

UNUSED = -1
Assignments = npt.NDArray[np.int8]
"""One sharding a row: for each axis the iteration dim that it splits, or UNUSED."""


def enumerate_assignments(op: Op, axes: SearchAxes, extra: Sequence[tuple[int, ...]] = ()) -> Assignments:
    """The shardings of an op that are worth weighing, in a fixed order, and the given ones.

    An op uses every axis that it can: repeating work on several devices is weighed only where no dim can be
    split further and, for ops without products, over axes of the innermost level, where gathering is cheap.
    """
    space = op.space
    bins = [UNUSED, *space.contiguous]
    legal = [
        assignment
        for assignment in itertools.product(bins, repeat=len(axes.axes))
        if _divides(space, axes.sizes, assignment)
    ]
    inner = [] if space.flop_terms else [i for i, axis in enumerate(axes.axes) if axis.level == 0]
    most = max(_used(axes.sizes, assignment) for assignment in legal)
    legal = [one for one in legal if _used(axes.sizes, one, idle=inner) == most]
    legal += [tuple(one) for one in extra if _divides(space, axes.sizes, one)]
    return np.array(list(dict.fromkeys(legal)), dtype=np.int8).reshape(-1, len(axes.axes))


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


def _divides(space: IterationSpace, sizes: Sequence[int], assignment: Sequence[int]) -> bool:
    parts: dict[int, int] = {}
    for dim, size in zip(assignment, sizes, strict=True):
        if dim != UNUSED:
            parts[dim] = parts.get(dim, 1) * size
    return all(space.dims[dim].size % count == 0 for dim, count in parts.items())


def _used(sizes: Sequence[int], assignment: Sequence[int], idle: Sequence[int] = ()) -> int:
    """How many devices share the work, those on the axes that may be idle counted in any case."""
    used = 1
    for axis, (dim, size) in enumerate(zip(assignment, sizes, strict=True)):
        used *= size if dim != UNUSED or axis in idle else 1
    return used
