"""Finds the plan of a run: the first rank searches, all ranks get what it found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from syncline.cluster.presets import cluster_from
from syncline.cluster.topology import Cluster
from syncline.errors import SynclineError
from syncline.graph.opgraph import OpGraph
from syncline.planning.plan import Plan
from syncline.planning.planner import Request, make_plan
from syncline.strategies.protocol import Job
from syncline.workloads.batch import count_rows

MARGIN = 0.1
"""Predictions err by about as much, and of what is as fast the plainest is the safest."""


def find_plan(job: Job, graph: OpGraph) -> Plan:
    """The fastest plan for a job on the ranks at hand.

    Raises:
        InfeasiblePlanError: Nothing fits; says what binds and what would.
    """
    return on_first_rank(job, lambda: make_plan(graph, live_cluster(job), _request(job)).plan)


def on_first_rank(job: Job, decide: Callable[[], Plan]) -> Plan:
    """What the first rank decides, or the user's mistake that it found, on every rank."""
    told: list[Any] = [None]
    if job.rank.is_first:
        try:
            told[0] = decide()
        except SynclineError as error:
            told[0] = error
    dist.broadcast_object_list(told)
    if isinstance(told[0], SynclineError):
        raise told[0]
    return told[0]


def live_cluster(job: Job) -> Cluster:
    """What the ranks run on: as the job says, or machines like this one."""
    return cluster_from(job.cluster or f"{job.rank.nodes}x{job.rank.local_world_size}")


def state_factor(job: Job) -> float:
    """Bytes of optimizer state for each byte of a parameter, as far as the optimizer is known."""
    name = type(job.optimizer).__name__
    if name == "SGD":
        return 1.0 if any(group.get("momentum") for group in job.optimizer.param_groups) else 0.0
    return {"RMSprop": 1.0, "Adagrad": 1.0}.get(name, 2.0)


def _request(job: Job) -> Request:
    example = job.example
    return Request(
        model=type(job.model).__name__,
        batch=count_rows(example) if example is not None else 0,
        state_factor=state_factor(job),
        proposals=0,
        margin=MARGIN,
    )
