"""Whether a plan can run on the live ranks: asked before anything is cut."""

from __future__ import annotations

import math

from syncline.cluster.topology import NODE_LEVEL
from syncline.errors import PlanningError
from syncline.graph.opgraph import OpGraph
from syncline.planning.plan import Plan
from syncline.planning.plan_check import check_plan
from syncline.strategies.protocol import Job


def check_live(plan: Plan, graph: OpGraph, job: Job) -> None:
    """Refuse a plan for other ranks, other nodes, another model, or more memory than there is.

    Raises:
        PlanningError: Says what the plan is for, what is there, and how to plan again.
    """
    again = "Leave --plan out to plan for these ranks, or search again: " + _command(plan, job)
    ranks = math.prod(axis.size for axis in plan.axes)
    if ranks != job.rank.world_size:
        raise PlanningError(
            f"The plan is for {ranks} ranks ({_axes(plan)}), but {job.rank.world_size} run.\n"
            f"Use --ranks {ranks}. {again}"
        )
    inside = math.prod(axis.size for axis in plan.axes if axis.level == NODE_LEVEL)
    has_nodes = any(axis.level == NODE_LEVEL for axis in plan.axes)
    if has_nodes and inside != job.rank.local_world_size:
        raise PlanningError(
            f"The plan is for nodes of {inside} ranks ({_axes(plan)}), but a node here has "
            f"{job.rank.local_world_size}: what it sends inside a node would go between nodes.\n{again}"
        )
    check_plan(plan, graph)


def _axes(plan: Plan) -> str:
    return ", ".join(f"{axis.name} of {axis.size}" for axis in plan.axes) or "no axes"


def _command(plan: Plan, job: Job) -> str:
    cluster = job.cluster or f"{job.rank.nodes}x{job.rank.local_world_size}"
    return f"syncline plan {plan.workload.model} --cluster {cluster} --batch {plan.workload.batch} -o plan.json"
