"""A job as nodes see it: the model, the groups, and how the ranks of each node work as one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import nn

from syncline.errors import StrategyError
from syncline.strategies.averaging.inside import Inside, InsideKind, work_as_one
from syncline.strategies.averaging.nodes import NodeGroups, check_node_size, find_nodes
from syncline.strategies.averaging.wire import WireType
from syncline.strategies.gradient_step import check_even_rows, prepare_model
from syncline.strategies.protocol import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """A job whose ranks work as nodes."""

    job: Job
    model: nn.Module
    groups: NodeGroups
    inside: Inside
    wire: WireType
    node_size: int | None

    @classmethod
    def prepare(
        cls, job: Job, *, wire: WireType, node_size: int | None, inside: InsideKind = "data"
    ) -> NodeWork:
        """Find the nodes, make their groups and join the ranks of each; every rank must call this."""
        model = prepare_model(job)
        groups = _open_groups(job, node_size)
        if inside == "sharded" and not groups.nodes.is_even:
            sizes = ", ".join(str(len(members)) for members in groups.nodes.ranks)
            raise StrategyError(
                f"inside=sharded needs nodes of one size, but they have {sizes} ranks.\nUse inside=data."
            )
        return cls(
            job=job,
            model=model,
            groups=groups,
            inside=work_as_one(inside, job, model, groups),
            wire=wire,
            node_size=node_size,
        )

    def regrouped(self) -> NodeWork:
        """The same job among those who are members now; every rank must call this."""
        groups = _open_groups(self.job, self.node_size)
        return replace(self, groups=groups, inside=work_as_one("data", self.job, self.model, groups))


def _open_groups(job: Job, node_size: int | None) -> NodeGroups:
    """The groups of those who are members now, whoever was at the start."""
    present = dataclasses.replace(job.rank, index=dist.get_rank(), world_size=dist.get_world_size())
    return NodeGroups(present, find_nodes(present, node_size))


def check_nodes(
    name: str, node_size: int | None, *, world_size: int, global_batch: int, accumulate: int
) -> None:
    """Refuse what no averaging strategy can run with: uneven shares, or ranks that form no nodes."""
    check_even_rows(name, world_size=world_size, global_batch=global_batch, accumulate=accumulate)
    if node_size is not None:
        check_node_size(node_size, world_size)
