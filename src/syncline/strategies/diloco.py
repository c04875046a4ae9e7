"""`diloco`: nodes train by themselves; an outer optimizer moves the weights they share by their mean change.

DiLoCo (Douillard et al., 2023), and its streaming form (2025): with `fragments`, parts of the model are
exchanged one after another, so that the link is used evenly; with `delay`, an average is taken over some
steps after it was sent, and the steps made meanwhile are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from syncline.errors import StrategyError
from syncline.strategies.averaging.buckets import Buckets, float_buffers, trained_parameters
from syncline.strategies.averaging.inside import InsideKind
from syncline.strategies.averaging.node_work import NodeWork, check_nodes
from syncline.strategies.averaging.outer import OuterNesterov
from syncline.strategies.averaging.step import AveragingStep
from syncline.strategies.averaging.weights import WeightExchange
from syncline.strategies.averaging.wire import WireType
from syncline.strategies.protocol import Job, TrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class DiLoCo:
    """Many steps alone, then one large step together."""

    name: ClassVar[str] = "diloco"
    exact: ClassVar[bool] = False
    summary: ClassVar[str] = "nodes train by themselves, an outer step moves the weights they share (DiLoCo)"

    sync_every: int = 32
    """Steps from one exchange of the same weights to the next."""
    outer_lr: float = 0.7
    """Learning rate of the outer optimizer."""
    outer_momentum: float = 0.9
    """Nesterov momentum of the outer optimizer."""
    fragments: int = 1
    """Parts of the model that are exchanged one after another."""
    delay: int = 0
    """Steps from sending to taking over."""
    wire: WireType = "fp32"
    """Numbers on the link between nodes: fp32, or 16 bits with fp32 weights and error feedback."""
    inside: InsideKind = "data"
    """Inside a node: whole weights with averaged gradients, or weights cut over its ranks."""
    node_size: int | None = None
    """Ranks that count as one node (default: those of one machine)."""

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise StrategyError(f"diloco: sync-every is {self.sync_every}; it must be at least 1 (step).")
        if not 1 <= self.fragments <= self.sync_every:
            raise StrategyError(
                f"diloco: fragments is {self.fragments}; with sync-every={self.sync_every} it must be 1 to "
                f"{self.sync_every}, for each fragment needs a step of its own."
            )
        if not 0 <= self.delay < self.sync_every:
            raise StrategyError(
                f"diloco: delay is {self.delay}; an average must arrive before its fragment is sent again: "
                f"0 to {self.sync_every - 1} with sync-every={self.sync_every}."
            )
        if self.outer_lr <= 0 or not 0 <= self.outer_momentum < 1:
            raise StrategyError(
                f"diloco: outer-lr is {self.outer_lr} and outer-momentum {self.outer_momentum}; they must "
                "be above 0, and at least 0 and below 1."
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
        """Join the ranks of each node, and open an exchange for each fragment."""
        work = NodeWork.prepare(job, wire=self.wire, node_size=self.node_size, inside=self.inside)
        return _DiLoCoStep(work, self)


class _Fragment:
    """Some of the weights, with their exchange and their outer optimizer."""

    def __init__(
        self, work: NodeWork, options: DiLoCo, parameters: Sequence[nn.Parameter], *, is_first: bool
    ) -> None:
        start = Buckets(parameters).read()
        self.outer = OuterNesterov(start, lr=options.outer_lr, momentum=options.outer_momentum)
        statistics = float_buffers(work.model) if is_first else []
        self.exchange = WeightExchange(work, self.outer, parameters=parameters, statistics=statistics)
        self.has_moved = False

    def finish(self, number: int) -> None:
        """Take over what is under way, if anything is; the shared weights are what all nodes know then."""
        if self.exchange.under_way is None:
            return
        self.exchange.merge(number)
        self.exchange.rebase([shared.detach() for shared in self.outer.shared])
        self.has_moved = True

    def restart(self) -> None:
        """Begin anew from weights that are the same on all nodes."""
        self.exchange.rebase()
        self.outer.restart(self.exchange.read())
        self.has_moved = False


class _DiLoCoStep(AveragingStep):
    def __init__(self, work: NodeWork, options: DiLoCo) -> None:
        super().__init__(work)
        parts = cut(trained_parameters(work.model), options.fragments)
        self._fragments = [
            _Fragment(work, options, part, is_first=number == 0) for number, part in enumerate(parts)
        ]
        self._every, self._delay = options.sync_every, options.delay

    @property
    def exposed_s(self) -> float:
        """Seconds in which this rank has stood still for other nodes."""
        return sum(fragment.exchange.exchange.times.exposed_s for fragment in self._fragments)

    def _update(self) -> None:
        super()._update()
        number = self.done + 1
        for place, fragment in enumerate(self._fragments):
            under_way = fragment.exchange.under_way
            if under_way is not None and number >= under_way.due:
                fragment.finish(number)
            offset = (place + 1) * self._every // len(self._fragments)
            if number % self._every == offset % self._every:
                fragment.exchange.start(number, self._delay)
                if not self._delay:
                    fragment.finish(number)
        if number == self._work.job.steps:
            for fragment in self._fragments:
                fragment.finish(number)
            self._restart()

    def _layout(self) -> dict[str, Any]:
        return super()._layout() | {"fragments": len(self._fragments), "delay": self._delay}

    def _schedule_state(self) -> dict[str, Any]:
        return {
            "exchanges": [fragment.exchange.state() for fragment in self._fragments],
            "has_moved": [fragment.has_moved for fragment in self._fragments],
        }

    def _tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for number, fragment in enumerate(self._fragments):
            own = fragment.outer.tensors()
            if self._delay:
                own |= fragment.exchange.tensors()
            named |= _of_fragment(number, own)
        return named

    def _rank_tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for number, fragment in enumerate(self._fragments):
            named |= _of_fragment(number, fragment.exchange.known())
        return named

    def _apply_schedule(self, told: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        for number, fragment in enumerate(self._fragments):
            prefix = f"fragment-{number}."
            own = {
                name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)
            }
            fragment.has_moved = told["has_moved"][number]
            fragment.outer.apply(own, has_moved=fragment.has_moved)
            fragment.exchange.apply(told["exchanges"][number], own)

    def _restart(self) -> None:
        self.make_nodes_equal()
        for fragment in self._fragments:
            fragment.restart()


def _of_fragment(number: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"fragment-{number}.{name}": tensor for name, tensor in tensors.items()}


def cut(parameters: Sequence[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """Runs of parameters with about equally many numbers; fewer than asked for when there are too few."""
    total = sum(parameter.numel() for parameter in parameters)
    parts: list[list[nn.Parameter]] = [[] for _ in range(count)]
    before = 0
    for parameter in parameters:
        parts[min(count - 1, before * count // max(1, total))].append(parameter)
        before += parameter.numel()
    return [part for part in parts if part]
