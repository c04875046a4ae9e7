"""A plan for another graph of the same model: how it is evaluated, or trained on another batch size."""

from __future__ import annotations

import dataclasses
import math

from syncline.graph.opgraph import Op, OpGraph
from syncline.planning.plan import OpSharding, Plan
from syncline.planning.roles import constant_ops


def fit_plan(plan: Plan, graph: OpGraph) -> Plan:
    """The plan with the ops of this graph: what is split there and can be split here, is.

    An op that the plan does not know is run whole.
    """
    constant = constant_ops(graph)
    sizes = {axis.name: axis.size for axis in plan.axes}
    ops = {
        op.name: OpSharding(split={} if op.id in constant else _split(op, plan, sizes)) for op in graph.ops
    }
    return dataclasses.replace(plan, ops=ops)


def _split(op: Op, plan: Plan, sizes: dict[str, int]) -> dict[str, tuple[str, ...]]:
    known = plan.ops.get(op.name)
    if known is None:
        return {}
    dims = {op.space.dims[index].name: op.space.dims[index].size for index in op.space.splittable}
    return {
        dim: axes
        for dim, axes in known.split.items()
        if dim in dims and dims[dim] % math.prod(sizes[axis] for axis in axes) == 0
    }
