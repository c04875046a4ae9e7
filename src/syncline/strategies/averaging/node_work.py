"""A job as nodes see it: the model, the groups, and how the ranks of each node work as one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from syncline.strategies.averaging.inside import Inside, InsideKind, work_as_one
from syncline.strategies.averaging.nodes import NodeGroups, find_nodes
from syncline.strategies.averaging.wire import WireType
from syncline.strategies.gradient_step import prepare_model
from syncline.strategies.protocol import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """A job whose ranks work as nodes."""

    job: Job
    model: nn.Module
    groups: NodeGroups
    inside: Inside
    wire: WireType

    @classmethod
    def prepare(
        cls, job: Job, *, wire: WireType, node_size: int | None, inside: InsideKind = "data"
    ) -> NodeWork:
        """Find the nodes, make their groups and join the ranks of each; every rank must call this."""
        model = prepare_model(job)
        groups = NodeGroups(job.rank, find_nodes(job.rank, node_size))
        return cls(
            job=job, model=model, groups=groups, inside=work_as_one(inside, job, model, groups), wire=wire
        )
