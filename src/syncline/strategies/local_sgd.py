"""`local-sgd`: nodes train by themselves and replace their weights by the average every so many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from syncline.errors import StrategyError
from syncline.strategies.averaging.inside import InsideKind
from syncline.strategies.averaging.merging import ByReplacing
from syncline.strategies.averaging.node_work import NodeWork, check_nodes
from syncline.strategies.averaging.step import AveragingStep
from syncline.strategies.averaging.weights import WeightExchange
from syncline.strategies.averaging.wire import WireType
from syncline.strategies.protocol import Job, TrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd:
    """The simplest way to talk seldom: everybody waits, now and then, for everybody's average."""

    name: ClassVar[str] = "local-sgd"
    exact: ClassVar[bool] = False
    summary: ClassVar[str] = "nodes train by themselves and average their weights every few steps (blocking)"

    sync_every: int = 8
    """Steps from one average to the next."""
    wire: WireType = "fp32"
    """Numbers on the link between nodes: fp32, or 16 bits with fp32 weights and error feedback."""
    inside: InsideKind = "data"
    """Inside a node: whole weights with averaged gradients, or weights cut over its ranks."""
    node_size: int | None = None
    """Ranks that count as one node (default: those of one machine)."""

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise StrategyError(f"local-sgd: sync-every is {self.sync_every}; it must be at least 1 (step).")

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
        """Join the ranks of each node, and open the exchange between nodes."""
        work = NodeWork.prepare(job, wire=self.wire, node_size=self.node_size, inside=self.inside)
        return _LocalSgdStep(work, sync_every=self.sync_every)


class _LocalSgdStep(AveragingStep):
    """Averages weights after every `sync_every`-th step, and after the last of the run."""

    def __init__(self, work: NodeWork, *, sync_every: int) -> None:
        super().__init__(work)
        self._weights_exchange = WeightExchange(work, ByReplacing())
        self._sync_every = sync_every

    @property
    def exposed_s(self) -> float:
        """Seconds in which this rank has stood still for other nodes."""
        return self._weights_exchange.exchange.times.exposed_s

    def _update(self) -> None:
        super()._update()
        number = self.done + 1
        if number == self._work.job.steps:
            self._restart()
        elif number % self._sync_every == 0:
            self._weights_exchange.start(number, wait=0)
            self._weights_exchange.merge(number)

    def _schedule_state(self) -> dict[str, Any]:
        return {"weights": self._weights_exchange.state()}

    def _rank_tensors(self) -> dict[str, Tensor]:
        return self._weights_exchange.known()

    def _apply_schedule(self, told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._weights_exchange.apply(told["weights"], tensors)

    def _restart(self) -> None:
        self.make_nodes_equal()
        self._weights_exchange.rebase()
