"""Training in stages among what `syncline plan` weighs: pipelines, and `local` with its heads."""

from __future__ import annotations

import dataclasses

from syncline.cluster.topology import Cluster
from syncline.graph.cutting import Cutting
from syncline.graph.opgraph import OpGraph
from syncline.planning.planner import Planned, Request
from syncline.planning.staged import StagedCosts
from syncline.strategies.local.choosing import Heads
from syncline.strategies.local.strategy import LocalParallel


def with_stages(planned: Planned, graph: OpGraph, cluster: Cluster, request: Request) -> Planned:
    """The plan with training in stages added to its alternatives."""
    cutting = Cutting(graph)
    heads = Heads(cutting, cutting, kind=None, cap=LocalParallel().head_cap)
    costs = StagedCosts(
        cutting,
        cluster,
        batch=request.batch,
        state_factor=request.state_factor,
        head_flops=lambda start, end: heads.plan(start, end).forward_flops,
    )
    found = costs.alternatives(planned.plan.memory_limit_bytes)
    plan = dataclasses.replace(planned.plan, alternatives=(*planned.plan.alternatives, *found))
    return dataclasses.replace(planned, plan=plan)
