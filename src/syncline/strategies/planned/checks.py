"""Whether a plan can run on the live ranks: asked before anything is cut."""

from __future__ import annotations

import math

from syncline.cluster.machine import memory_bytes_per_rank
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
    check_ranks(plan, job.rank.world_size)
    check_nodes(plan, job)
    check_plan(plan, graph)
    check_memory(plan, job)


def rank_count(plan: Plan) -> int:
    """How many ranks a plan is for."""
    return math.prod(axis.size for axis in plan.axes)


def check_ranks(plan: Plan, world_size: int) -> None:
    """Refuse a plan for another number of ranks."""
    if rank_count(plan) != world_size:
        raise PlanningError(
            f"The plan is for {rank_count(plan)} ranks ({_axes(plan)}), but {world_size} run.\n"
            f"Use --ranks {rank_count(plan)}, or leave --plan out: --strategy planned then plans for "
            f"{world_size} ranks."
        )


def check_nodes(plan: Plan, job: Job) -> None:
    """Refuse a plan for nodes of another size: it would send between nodes what it means to keep inside."""
    inside = math.prod(axis.size for axis in plan.axes if axis.level == NODE_LEVEL)
    has_nodes = any(axis.level == NODE_LEVEL for axis in plan.axes)
    if has_nodes and inside != job.rank.local_world_size:
        raise PlanningError(
            f"The plan is for nodes of {inside} ranks ({_axes(plan)}), but a node here has "
            f"{job.rank.local_world_size}: what it sends inside a node would go between nodes.\n"
            f"Plan for these nodes: {_command(plan, job)}"
        )


def check_memory(plan: Plan, job: Job) -> None:
    """Refuse a plan that needs more memory than a rank has here."""
    needed = plan.prediction.memory.total
    available = memory_bytes_per_rank(job.device, job.rank.local_world_size)
    if needed > available:
        largest = plan.prediction.memory.largest.replace("_", " ")
        raise PlanningError(
            f"The plan needs {needed / 1e9:.3g} GB a rank, most of it for {largest}, but a rank has "
            f"{available / 1e9:.3g} GB here: {job.rank.local_world_size} share this machine.\n"
            f"Plan within that: {_command(plan, job)} --memory {available / 1e9:.3g}GB"
        )


def _axes(plan: Plan) -> str:
    return ", ".join(f"{axis.name} of {axis.size}" for axis in plan.axes) or "no axes"


def _command(plan: Plan, job: Job) -> str:
    cluster = job.cluster or f"{job.rank.nodes}x{job.rank.local_world_size}"
    return (
        f"syncline plan {plan.workload.model} --cluster {cluster} --batch {plan.workload.batch} -o plan.json"
    )
