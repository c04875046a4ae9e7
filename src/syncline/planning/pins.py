"""What the user has decided already: the search takes care of the rest."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from syncline.errors import PlanningError
from syncline.graph.opgraph import Op, OpGraph, TensorKind
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import UNUSED, Assignments, legal_assignments, widest
from syncline.planning.roles import batch_dims
from syncline.planning.tables import Tables

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


def pin_labels(graph: OpGraph, pins: Sequence[Pin]) -> dict[int, tuple[int, ...]]:
    """For each op that pins speak of, which of them do: ops with different labels are decided apart."""
    named = [_named_ops(graph, pin) for pin in pins]
    ops = sorted(set().union(*named))
    return {op: tuple(number for number, found in enumerate(named) if op in found) for op in ops}


def pinned_shardings(
    graph: OpGraph, axes: SearchAxes, pins: Sequence[Pin]
) -> dict[int, list[tuple[int, ...]]]:
    """For each op that pins speak of, the shardings that they allow and that use the most devices.

    Without pins some of them would not be worth weighing.

    Raises:
        PlanningError: A pin names what does not exist, or leaves an op without any sharding.
    """
    batch = batch_dims(graph)
    found: dict[int, list[tuple[int, ...]]] = {}
    for pin in pins:
        _check(pin, graph, axes)
    for op_id, numbers in pin_labels(graph, pins).items():
        op = graph.ops[op_id]
        rows = legal_assignments(graph, op, axes)
        for number in numbers:
            rows = rows[_allowed(pins[number], op, rows, axes, batch)]
        if not len(rows):
            raise PlanningError(
                f"No sharding of {op.name} satisfies the pins on it.\n"
                "Its dims must divide evenly into the parts asked for; take one of the pins back."
            )
        found[op_id] = [tuple(map(int, row)) for row in widest(axes, rows)]
    return found


def pin_masks(tables: Tables, pins: Sequence[Pin]) -> dict[int, Mask]:
    """For each node whose op a pin speaks of, which of its shardings are left."""
    masks: dict[int, Mask] = {}
    batch = batch_dims(tables.graph)
    labels = pin_labels(tables.graph, pins)
    for index, node in enumerate(tables.nodes):
        if node.op is None or node.assignments is None or node.op.id not in labels:
            continue
        masks[index] = np.ones(node.count, dtype=bool)
        for number in labels[node.op.id]:
            masks[index] &= _allowed(pins[number], node.op, node.assignments, tables.axes, batch)
    return masks


def _named_ops(graph: OpGraph, pin: Pin) -> set[int]:
    """The ops that a pin speaks of: of those with such names, the ones that have its dims."""
    wanted = {*pin.split, *pin.whole}
    return {op.id for op in _matches(graph, pin) if wanted <= {dim.name for dim in op.space.dims}}


def _matches(graph: OpGraph, pin: Pin) -> list[Op]:
    aliases: dict[str, set[str]] = {}
    for other, name in graph.tied.items():
        aliases.setdefault(name, set()).add(other)

    def uses(op: Op, pattern: str) -> bool:
        used = (graph.tensors[tensor] for tensor in op.inputs)
        parameters = (tensor.name for tensor in used if tensor.kind is TensorKind.PARAMETER)
        return any(
            fnmatch.fnmatchcase(name, pattern)
            for parameter in parameters
            for name in (parameter, *aliases.get(parameter, ()))
        )

    return [
        op
        for op in graph.ops
        if (pin.ops is None or fnmatch.fnmatchcase(op.name, pin.ops))
        and (pin.parameters is None or uses(op, pin.parameters))
    ]


def _allowed(pin: Pin, op: Op, rows: Assignments, axes: SearchAxes, batch: dict[int, int]) -> Mask:
    allowed = np.ones(len(rows), dtype=bool)
    for name, wanted in pin.split.items():
        for column, axis in enumerate(axes.axes):
            allowed &= (rows[:, column] == op.space.index(name)) == (axis.name in wanted)
    for name in pin.whole:
        allowed &= ~(rows == op.space.index(name)).any(axis=1)
    for column, axis in enumerate(axes.axes):
        if axis.name in pin.data_axes:
            allowed &= (rows[:, column] == batch.get(op.id, UNUSED)) | (rows[:, column] == UNUSED)
    return allowed


def _check(pin: Pin, graph: OpGraph, axes: SearchAxes) -> None:
    _check_axes(pin, axes)
    matches = _matches(graph, pin)
    if not matches:
        if pin.parameters is not None:
            names, given = list(graph.parameters), pin.parameters
        else:
            names, given = [op.name for op in graph.ops], pin.ops or "*"
        near = difflib.get_close_matches(given, names, 3, cutoff=0.3) or names[:3]
        raise PlanningError(
            f"A pin speaks of '{given}', but nothing in this model has such a name.\n"
            f"Names look like {', '.join(near)}."
        )
    if not _named_ops(graph, pin):
        op = matches[0]
        missing = next(name for name in (*pin.split, *pin.whole) if not _has_dim(op, name))
        dims = ", ".join(dim.name for dim in op.space.dims)
        raise PlanningError(f"{op.name} has no dim '{missing}'. Its dims: {dims}.")


def _has_dim(op: Op, name: str) -> bool:
    return any(dim.name == name for dim in op.space.dims)


def _check_axes(pin: Pin, axes: SearchAxes) -> None:
    known = {axis.name for axis in axes.axes}
    named = {*pin.data_axes, *(name for wanted in pin.split.values() for name in wanted)}
    if named - known:
        raise PlanningError(
            f"A pin names the axis '{sorted(named - known)[0]}'. The axes here: {', '.join(sorted(known))}."
        )
