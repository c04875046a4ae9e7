"""`daso`: gradients averaged inside a node in every step, weights between nodes seldom, without waiting.

Distributed Asynchronous and Selective Optimization (Coquelin et al., 2021), on any cluster, model and
optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from syncline.errors import StrategyError
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.strategies.averaging.inside import InsideKind
from syncline.strategies.averaging.lengths import check_length, in_steps
from syncline.strategies.averaging.node_work import NodeWork, check_nodes
from syncline.strategies.averaging.schedule import CycleSchedule, Phases, Rates
from syncline.strategies.averaging.wire import WireType
from syncline.strategies.protocol import Job, TrainStep

_FIRST_AUTO = Rates(4, 1)
"""Until exchanges have been timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daso:
    """Nodes that train by themselves and merge each other's weights as they arrive."""

    name: ClassVar[str] = "daso"
    exact: ClassVar[bool] = False
    summary: ClassVar[str] = (
        "averages inside nodes each step, between nodes seldom and without waiting (DASO)"
    )

    sync_every: int | Literal["auto"] = 4
    """Steps from one exchange between nodes to the next; auto chooses by what exchanges take."""
    wait: int | None = None
    """Steps from sending weights to merging their average (default: 1; auto chooses it too)."""
    local_skip: int = 1
    """Average inside a node in one of so many steps only."""
    reset: int = 8
    """Where sync-every starts over when the loss is flat and it has come down to 1."""
    warm_up: int | float = 0.05
    """Steps, or the share of the run, at the start in which every step averages gradients over all nodes."""
    cool_down: int | float = 0.05
    """The same at the end."""
    review_every: int | float = 0.02
    """Steps, or the share of the run, after which the loss is looked at."""
    merge: Literal["delta", "paper"] = "delta"
    """delta keeps all steps made while waiting; paper is the published formula."""
    node_rate: float | Literal["auto"] = "auto"
    """Factor of the learning rate while nodes train by themselves; auto makes up for what Adam loses by a
    node's noisier gradients, where these are clipped, and is 1 otherwise."""
    wire: WireType = "fp32"
    """Numbers on the link between nodes: fp32, or 16 bits with fp32 weights and error feedback."""
    inside: InsideKind = "data"
    """Inside a node: whole weights with averaged gradients, or weights cut over its ranks."""
    node_size: int | None = None
    """Ranks that count as one node (default: those of one machine)."""

    on_node_loss: Literal["stop", "continue"] = "stop"
    """Whether the run ends when a node is lost, or the others go on without it and take it back."""

    def __post_init__(self) -> None:
        self._check_rates()
        self._check_nodes()
        check_length("daso", "warm-up", self.warm_up)
        check_length("daso", "cool-down", self.cool_down)
        check_length("daso", "review-every", self.review_every, least=0)
        blocking = [part for part in (self.warm_up, self.cool_down) if isinstance(part, float)]
        if sum(blocking) > 1:
            raise StrategyError(
                f"daso: warm-up={self.warm_up} and cool-down={self.cool_down} are shares of the run, and "
                "together more than all of it.\nUse shares that leave steps to cycle in, such as the usual "
                "0.05 each."
            )

    def _check_rates(self) -> None:
        counts = {"sync-every": self.sync_every, "wait": self.wait, "reset": self.reset}
        for key, value in (counts | {"local-skip": self.local_skip}).items():
            if isinstance(value, int) and value < 1:
                raise StrategyError(f"daso: {key} is {value}; it must be at least 1 (step).")
        if self.node_rate != "auto" and self.node_rate <= 0:
            raise StrategyError(
                f"daso: node-rate is {self.node_rate}; as a factor of the learning rate it must be above 0.\n"
                "Use node-rate=1 for the rate of the run, or leave it out."
            )
        if isinstance(self.sync_every, int):
            if (self.wait or 1) > self.sync_every:
                raise StrategyError(
                    f"daso: wait={self.wait} is longer than sync-every={self.sync_every}: an average must "
                    "arrive before the next one is under way.\nUse a shorter wait or a longer sync-every."
                )
        elif self.wait is not None:
            raise StrategyError(
                f"daso: sync-every=auto chooses how long to wait, but wait={self.wait} is given too.\n"
                "Leave wait out, or give sync-every in steps."
            )
        elif self.local_skip > 1:
            raise StrategyError(
                "daso: sync-every=auto averages inside nodes in every step, but "
                f"local-skip={self.local_skip} is given.\nLeave local-skip out, or give sync-every in steps."
            )

    def _check_nodes(self) -> None:
        if self.inside == "sharded" and self.local_skip > 1:
            raise StrategyError(
                f"daso: local-skip={self.local_skip} needs whole weights on each rank, but inside=sharded "
                "cuts them.\nUse inside=data, or local-skip=1."
            )
        if self.inside == "sharded" and self.on_node_loss == "continue":
            raise StrategyError(
                "daso: on-node-loss=continue needs whole weights on each rank, but inside=sharded cuts "
                "them.\nUse inside=data, or on-node-loss=stop."
            )
        if self.node_size is not None and self.on_node_loss == "continue":
            raise StrategyError(
                f"daso: on-node-loss=continue takes machines for nodes, but node-size={self.node_size} is "
                "given.\nLeave node-size out, or use on-node-loss=stop."
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
        """Join the ranks of each node, and open the exchange between nodes."""
        phases = self._phases(job.steps)
        review_every = in_steps("daso", "review-every", self.review_every, job.steps, least=1)
        work = NodeWork.prepare(job, wire=self.wire, node_size=self.node_size, inside=self.inside)
        return CyclingStep(
            work,
            phases=phases,
            schedule=self.first_schedule(),
            merge=self.merge,
            node_rate=None if self.node_rate == "auto" else self.node_rate,
            review_every=max(1, review_every),
        )

    def first_schedule(self) -> CycleSchedule:
        """The rates with which cycling begins."""
        if self.sync_every == "auto":
            return CycleSchedule(rates=_FIRST_AUTO, reset=self.reset, auto=True)
        rates = Rates(self.sync_every, self.wait or 1, self.local_skip)
        return CycleSchedule(rates=rates, reset=self.reset, skips=self.inside == "data")

    def _phases(self, steps: int | None) -> Phases:
        # Without a known end there is nothing to cool down for.
        cool_down = 0 if steps is None else in_steps("daso", "cool-down", self.cool_down, steps)
        warm_up = in_steps("daso", "warm-up", self.warm_up, steps)
        return Phases(warm_up=warm_up, cool_down=cool_down, steps=steps)
