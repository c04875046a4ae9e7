"""Finds the rule of a call in the table and fits it; an op without one gets a space that cannot be split."""

from __future__ import annotations

import torch

from syncline.graph.notation import NotationError, Rule, fit
from syncline.graph.rules.call import Call
from syncline.graph.rules.pointwise import fits_pointwise, pointwise
from syncline.graph.space import Dim, DimKind, IterationSpace, Operand
from syncline.graph.table import TABLE, Row


def space_of(call: Call, tags: frozenset[torch.Tag]) -> IterationSpace:
    """The iteration space of a call. Tags are those of the op: any pointwise op has a rule."""
    row = find_row(call, tags)
    if row is not None:
        try:
            return fit(_as_rule(row, call), call.inputs, call.outputs)
        except NotationError:
            pass  # The op is known, but not in this form: it cannot be split either.
    return _unsplittable(call)


def find_row(call: Call, tags: frozenset[torch.Tag]) -> Row | None:
    """The table's row for a call, by overload first; None when there is no rule."""
    row = TABLE.get(f"{call.name}.{call.overload}") or TABLE.get(call.name)
    if row is None and torch.Tag.pointwise in tags and fits_pointwise(call.inputs, call.outputs):
        return pointwise
    return row


def _as_rule(row: Row, call: Call) -> Rule:
    if isinstance(row, str):
        return Rule(row)
    return row if isinstance(row, Rule) else row(call)


def _unsplittable(call: Call) -> IterationSpace:
    """Every dim of every tensor is an iteration dim of its own, and whole."""
    dims: list[Dim] = []
    operands: list[Operand] = []
    inputs = [shape for shape in call.inputs if shape is not None]
    for shape in (*inputs, *call.outputs):
        factors: list[tuple[int, ...]] = []
        for extent in shape:
            factors.append((len(dims),) if extent != 1 else ())
            if extent != 1:
                dims.append(Dim(f"d{len(dims)}", extent, DimKind.WHOLE))
        operands.append(Operand(tuple(factors)))
    return IterationSpace(
        notation="no rule",
        dims=tuple(dims),
        inputs=tuple(operands[: len(inputs)]),
        outputs=tuple(operands[len(inputs) :]),
        ruled=False,
    )
