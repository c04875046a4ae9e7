"""`hierarchical`: every rank trains by itself; weights are averaged often in a node, seldom over all ranks.

Torch's `HierarchicalModelAverager`, as it is: blocking, fp32, weights only.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)

from syncline.errors import StrategyError
from syncline.strategies.averaging.node_work import NodeWork, check_nodes
from syncline.strategies.averaging.nodes import NodeMap, find_nodes
from syncline.strategies.averaging.step import AveragingStep
from syncline.strategies.protocol import Job, TrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchical:
    """Averages at two levels, each with its own period."""

    name: ClassVar[str] = "hierarchical"
    exact: ClassVar[bool] = False
    summary: ClassVar[str] = "ranks train by themselves, averaged often in a node and seldom over all (torch)"

    inside_every: int = 2
    """Steps from one average inside a node to the next."""
    sync_every: int = 8
    """Steps from one average over all ranks to the next."""
    node_size: int | None = None
    """Ranks that count as one node (default: those of one machine)."""

    def __post_init__(self) -> None:
        if not 1 <= self.inside_every < self.sync_every:
            raise StrategyError(
                f"hierarchical: inside-every={self.inside_every} and sync-every={self.sync_every}: the first "
                "must be at least 1 (step) and below the second."
            )

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Any number of ranks that shares the batch evenly and forms nodes."""
        check_nodes(
            self.name,
            self.node_size,
            world_size=world_size,
            global_batch=global_batch,
            accumulate=accumulate,
        )

    def setup(self, job: Job) -> TrainStep:
        """Every rank is a node by itself to the step; torch's averager knows the real ones."""
        nodes = find_nodes(job.rank, self.node_size)
        averager = self._averager(nodes, job.rank.world_size)
        return _HierarchicalStep(NodeWork.prepare(job, wire="fp32", node_size=1), averager)

    def _averager(self, nodes: NodeMap, world_size: int) -> HierarchicalModelAverager:
        if not nodes.is_even:
            sizes = ", ".join(str(len(members)) for members in nodes.ranks)
            raise StrategyError(
                f"hierarchical needs nodes of one size, but they have {sizes} ranks.\nUse local-sgd or daso."
            )
        size = len(nodes.ranks[0])
        periods = {} if size in (1, world_size) else {self.inside_every: size}
        return HierarchicalModelAverager(OrderedDict({**periods, self.sync_every: world_size}))


class _HierarchicalStep(AveragingStep):
    """Lets torch's averager act after each update, and ends with all ranks equal."""

    def __init__(self, work: NodeWork, averager: HierarchicalModelAverager) -> None:
        super().__init__(work)
        self._averager = averager

    def _update(self) -> None:
        self._clip()
        self.optimizer.step()
        # It averages what has a gradient, and counts steps from 0.
        self._averager.average_parameters(self.model.parameters())
        self.optimizer.zero_grad(set_to_none=True)
        if self.done + 1 == self._work.job.steps:
            self.make_nodes_equal()

    def _apply_schedule(self, told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._averager.step = self.done

    def _restart(self) -> None:
        self.make_nodes_equal()
        self._averager.step = self.done
