"""Exchanging a model's weights and statistics between nodes: one average under way at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from syncline.strategies.averaging.buckets import Buckets, float_buffers, trained_parameters
from syncline.strategies.averaging.exchange import Exchange, Pending
from syncline.strategies.averaging.inside import average_inside
from syncline.strategies.averaging.merging import Merge, merge_delta, merge_paper
from syncline.strategies.averaging.node_work import NodeWork
from syncline.strategies.averaging.wire import Wire


class WeightExchange:
    """Sends what a node's weights are, and merges the average when it is due.

    Args:
        work: The job and its nodes, whose weights are equal now.
        merge: How a node takes over an average.
    """

    def __init__(self, work: NodeWork, merge: Merge) -> None:
        self._work = work
        self._merge_kind: Merge = merge
        self._weights = Buckets(trained_parameters(work.model))
        self._statistics = Buckets(float_buffers(work.model))
        count = work.groups.count
        self._wires = [Wire(work.wire, count, values) for values in self._weights.read()]
        plain = [Wire("fp32", count) for _ in self._statistics.parts]
        self.exchange = Exchange(work.groups, [*self._wires, *plain], every_rank=work.inside.is_sharded)
        self.pending: Pending | None = None
        self.started = 0
        """The step after which what is under way was sent."""
        self.due = 0

    def start(self, step: int, wait: int) -> None:
        """Send the values after this step, to be merged after `wait` more."""
        if not self._work.inside.is_sharded:
            average_inside(self._statistics, self._work.groups)
        self.pending = self.exchange.start([*self._weights.read(), *self._statistics.read()])
        self.started, self.due = step, step + wait

    def merge(self, step: int) -> None:
        """Take over what is under way, if anything is."""
        pending, self.pending = self.pending, None
        if pending is not None:
            self._take_over(pending, step - self.started)

    def start_then_merge(self, step: int, wait: int) -> None:
        """Send the values as they are before what is under way is taken over."""
        pending, waited = self.pending, step - self.started
        self.start(step, wait)
        if pending is not None:
            self._take_over(pending, waited)

    def rebase(self) -> None:
        """Forget what is under way: all nodes have the same weights now."""
        self.pending = None
        for wire, values in zip(self._wires, self._weights.read(), strict=True):
            wire.rebase(values)

    def _take_over(self, pending: Pending, waited: int) -> None:
        means = [average.own() for average in self.exchange.finish(pending)]
        nodes, own = self._work.groups.count, len(self._wires)
        now = self._weights.read()
        if self._merge_kind == "replace":
            self._weights.write(means[:own])
        elif self._merge_kind == "delta":
            self._weights.write(map(merge_delta, now, means[:own], pending.values[:own]))
        else:
            self._weights.write(_mix(now, means[:own], waited, nodes))
        # A mix of both keeps variances positive, which a movement added to them might not.
        self._statistics.write(_mix(self._statistics.read(), means[own:], waited, nodes))

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, besides tensors; waits for what is under way."""
        under_way = None
        if self.pending is not None:
            self.exchange.arrive(self.pending)
            under_way = {"started": self.started, "due": self.due}
        scales = [wire.scale for wire in self._wires]
        return {"under_way": under_way, "turn": self.exchange.turn, "scales": scales}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of what is under way (zeros when nothing is) and what all nodes know."""
        values = self.pending.values if self.pending else self._empty()
        sums = [sent.values for sent in self.pending.sent] if self.pending else self._empty(sums=True)
        known = [wire.reference for wire in self._wires if wire.reference is not None]
        named = {"values": values, "sums": sums, "known": known}
        return {f"{name}.{i}": each for name, tensors in named.items() for i, each in enumerate(tensors)}

    def apply(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `state` and `tensors` gave."""
        self.rebase()
        self.exchange.turn = state["turn"]
        for number, (wire, scale) in enumerate(zip(self._wires, state["scales"], strict=True)):
            wire.scale = scale
            if wire.reference is not None:
                wire.reference.copy_(tensors[f"known.{number}"])
        if state["under_way"] is None:
            return
        count = len(self.exchange.wires)
        values = [tensors[f"values.{number}"].clone() for number in range(count)]
        self.pending = self.exchange.arrived(values, [tensors[f"sums.{i}"].clone() for i in range(count)])
        self.started, self.due = state["under_way"]["started"], state["under_way"]["due"]

    def _empty(self, *, sums: bool = False) -> list[Tensor]:
        flats = [*self._weights.read(), *self._statistics.read()]
        wires = self.exchange.wires
        return [
            flat.zero_().to(wire.dtype if sums else flat.dtype)
            for flat, wire in zip(flats, wires, strict=True)
        ]


def _mix(now: Iterable[Tensor], means: Iterable[Tensor], waited: int, nodes: int) -> list[Tensor]:
    pairs = zip(now, means, strict=True)
    return [merge_paper(each, mean, waited=waited, nodes=nodes) for each, mean in pairs]
