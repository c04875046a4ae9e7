"""What the user has decided already: the search takes care of the rest."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from syncline.errors import PlanningError
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import UNUSED
from syncline.planning.roles import batch_dims
from syncline.planning.tables import Node, Tables

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A demand on the shardings of some ops, or on some axes for all ops."""

    ops: str | None = None
    """A pattern of op names, such as `blocks.*.up/linear`."""
    parameters: str | None = None
    """A pattern of parameter names: the ops that use them."""
    split: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Dims that must be split over exactly these axes."""
    whole: tuple[str, ...] = ()
    """Dims that must not be split."""
    data_axes: tuple[str, ...] = ()
    """Axes that may split the batch only, in all ops that the pin speaks of."""


def pin_masks(tables: Tables, pins: Sequence[Pin]) -> dict[int, Mask]:
    """For each op that a pin speaks of, which of its shardings are left.

    Raises:
        PlanningError: A pin names what does not exist, or leaves an op without any sharding.
    """
    masks: dict[int, Mask] = {}
    batch = batch_dims(tables.graph)
    for pin in pins:
        _check_axes(pin, tables.axes)
        matched = [index for index, node in enumerate(tables.nodes) if _speaks_of(pin, node, tables)]
        if not matched:
            given = pin.ops or pin.parameters or "*"
            raise PlanningError(
                f"A pin speaks of '{given}', but nothing in this model has such a name.\n"
                f"Names look like {_examples(tables)}."
            )
        for index in matched:
            node = tables.nodes[index]
            before = masks.get(index, np.ones(node.count, dtype=bool))
            masks[index] = before & _allowed(pin, node, tables, batch)
            if not masks[index].any():
                raise PlanningError(
                    f"No sharding of {node.op.name if node.op else '?'} satisfies the pins on it.\n"
                    "Its dims must divide evenly into the parts asked for; take one of the pins back."
                )
    return masks


def _speaks_of(pin: Pin, node: Node, tables: Tables) -> bool:
    if node.op is None:
        return False
    if pin.ops is not None and not fnmatch.fnmatch(node.op.name, pin.ops):
        return False
    if pin.parameters is None:
        return True
    names = (tables.graph.tensors[tensor].name for tensor in node.op.inputs)
    return any(fnmatch.fnmatch(name, pin.parameters) for name in names)


def _allowed(pin: Pin, node: Node, tables: Tables, batch: dict[int, int]) -> Mask:
    op, rows = node.op, node.assignments
    if op is None or rows is None:
        raise TypeError("only ops can be pinned")
    axes = tables.axes
    allowed = np.ones(node.count, dtype=bool)
    dims = {dim.name: index for index, dim in enumerate(op.space.dims)}
    for name in (*pin.split, *pin.whole):
        if name not in dims:
            raise PlanningError(f"{op.name} has no dim '{name}'. Its dims: {', '.join(dims)}.")
    for name, wanted in pin.split.items():
        for column, axis in enumerate(axes.axes):
            allowed &= (rows[:, column] == dims[name]) == (axis.name in wanted)
    for name in pin.whole:
        allowed &= ~(rows == dims[name]).any(axis=1)
    for column, axis in enumerate(axes.axes):
        if axis.name in pin.data_axes:
            allowed &= (rows[:, column] == batch.get(op.id, UNUSED)) | (rows[:, column] == UNUSED)
    return allowed


def _check_axes(pin: Pin, axes: SearchAxes) -> None:
    known = {axis.name for axis in axes.axes}
    named = {*pin.data_axes, *(name for wanted in pin.split.values() for name in wanted)}
    if named - known:
        raise PlanningError(
            f"A pin names the axis '{sorted(named - known)[0]}'. The axes here: {', '.join(sorted(known))}."
        )


def _examples(tables: Tables) -> str:
    return ", ".join(op.name for op in tables.graph.ops[:3])
