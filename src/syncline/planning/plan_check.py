"""Whether a plan, maybe edited by hand, is one for this graph."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection

from syncline.errors import PlanningError, unknown_name
from syncline.graph.opgraph import Op, OpGraph
from syncline.planning.plan import OpSharding, Plan
from syncline.planning.roles import constant_ops, splittable_dims


def check_plan(plan: Plan, graph: OpGraph) -> None:
    """Check that a plan speaks of every op of a graph, of no other, and splits each as it can be split.

    Raises:
        PlanningError: Names the op, what is wrong with it and what is allowed.
    """
    names = {op.name for op in graph.ops}
    unknown = sorted(plan.ops.keys() - names)
    if unknown:
        raise PlanningError(
            f"The plan is not for this model, which has no op '{unknown[0]}'{_near(unknown[0], names)}. "
            f"{len(unknown)} of the plan's ops are unknown."
        )
    missing = [op.name for op in graph.ops if op.name not in plan.ops]
    if missing:
        raise PlanningError(
            f"The plan says nothing about {len(missing)} of the model's {len(graph.ops)} ops, the first is "
            f"{missing[0]}.\nAdd an entry for each to `ops`; " + '{"split": {}} runs the whole op everywhere.'
        )
    _check_axes(plan)
    constant = constant_ops(graph)
    for op in graph.ops:
        _check_op(graph, op, plan.ops[op.name], plan, constant)
    tied = sorted(plan.tied.keys() - graph.parameters.keys())
    if tied:
        raise PlanningError("In `tied`: " + unknown_name("parameter", tied[0], graph.parameters))


def _near(given: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(given, names, n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _check_axes(plan: Plan) -> None:
    names = [axis.name for axis in plan.axes]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise PlanningError(f"The plan has two axes called '{doubles[0]}'. Give each its own name.")
    small = next((axis for axis in plan.axes if axis.size < 1), None)
    if small is not None:
        raise PlanningError(f"The axis '{small.name}' has the size {small.size}; it must be at least 1.")


def _check_op(graph: OpGraph, op: Op, sharding: OpSharding, plan: Plan, constant: Collection[int]) -> None:
    sizes = {axis.name: axis.size for axis in plan.axes}
    dims = {op.space.dims[index].name: op.space.dims[index].size for index in splittable_dims(graph, op)}
    if op.id in constant:
        dims = {}
    used: dict[str, str] = {}
    for dim, axes in sharding.split.items():
        if dim not in dims:
            allowed = ", ".join(f"{name} ({size})" for name, size in dims.items()) or "none, it is run whole"
            raise PlanningError(
                f"{op.name} cannot be split along '{dim}'. Dims that can be split: {allowed}."
            )
        for axis in axes:
            if axis not in sizes:
                raise PlanningError(f"{op.name}, dim '{dim}': " + unknown_name("axis", axis, sizes))
            if axis in used:
                raise PlanningError(
                    f"{op.name} uses the axis '{axis}' for '{used[axis]}' and for '{dim}'. An axis can split "
                    "one dim of an op, once."
                )
            used[axis] = dim
        parts = math.prod(sizes[axis] for axis in axes)
        if dims[dim] % parts:
            raise PlanningError(
                f"{op.name}: dim '{dim}' has the size {dims[dim]}, which {parts} parts do not divide evenly "
                f"(axes {', '.join(f'{axis} of {sizes[axis]}' for axis in axes)})."
            )
