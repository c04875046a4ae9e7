"""Exchanging weights and statistics between nodes: one average under way at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from syncline.strategies.averaging.buckets import Buckets, float_buffers, trained_parameters
from syncline.strategies.averaging.exchange import Exchange, Pending
from syncline.strategies.averaging.inside import average_inside
from syncline.strategies.averaging.merging import TakeOver, merge_paper
from syncline.strategies.averaging.node_work import NodeWork
from syncline.strategies.averaging.wire import Wire


class WeightExchange:
    """Sends what a node's weights are, and takes over the average when it is due.

    Args:
        work: The job and its nodes, whose weights are equal now.
        take_over: How a node takes over an average.
        parameters: What is exchanged; by default all that is trained.
        statistics: The buffers that go with them; by default all.
    """

    def __init__(
        self,
        work: NodeWork,
        take_over: TakeOver,
        *,
        parameters: Sequence[nn.Parameter] | None = None,
        statistics: Sequence[Tensor] | None = None,
    ) -> None:
        self._work = work
        self._take_over = take_over
        self._weights = Buckets(trained_parameters(work.model) if parameters is None else parameters)
        self._statistics = Buckets(float_buffers(work.model) if statistics is None else statistics)
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
            self._finish(pending, step - self.started)

    def start_then_merge(self, step: int, wait: int) -> None:
        """Send the values as they are before what is under way is taken over."""
        pending, waited = self.pending, step - self.started
        self.start(step, wait)
        if pending is not None:
            self._finish(pending, waited)

    def rebase(self, known: Sequence[Tensor] | None = None) -> None:
        """Forget what is under way: all nodes know the same values now, by default the weights."""
        self.pending = None
        for wire, values in zip(self._wires, known or self._weights.read(), strict=True):
            wire.rebase(values)

    def read(self) -> list[Tensor]:
        """The weights now, as flat copies."""
        return self._weights.read()

    def _finish(self, pending: Pending, waited: int) -> None:
        averages, own = self.exchange.finish(pending), len(self._wires)
        self._weights.write(
            self._take_over(self._weights.read(), averages[:own], pending.values[:own], waited)
        )
        # A mix of both keeps variances positive, which a movement added to them might not.
        nodes = self._work.groups.count
        statistics = zip(self._statistics.read(), averages[own:], strict=True)
        self._statistics.write(
            merge_paper(now, average.mean, waited=waited, nodes=nodes) for now, average in statistics
        )

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, besides tensors; waits for what is under way."""
        under_way = None
        if self.pending is not None:
            self.exchange.arrive(self.pending)
            under_way = {"started": self.started, "due": self.due}
        scales = [wire.scale for wire in self._wires]
        return {"under_way": under_way, "turn": self.exchange.turn, "scales": scales}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of what is under way, zeros when nothing is."""
        values = self.pending.values if self.pending else self._empty()
        sums = [sent.values for sent in self.pending.sent] if self.pending else self._empty(sums=True)
        return _numbered("values", values) | _numbered("sums", sums)

    def known(self) -> dict[str, Tensor]:
        """What all nodes know, with a 16-bit wire."""
        return _numbered("known", [wire.reference for wire in self._wires if wire.reference is not None])

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
        sums = [tensors[f"sums.{number}"].clone() for number in range(count)]
        self.pending = self.exchange.arrived(values, sums)
        self.started, self.due = state["under_way"]["started"], state["under_way"]["due"]

    def _empty(self, *, sums: bool = False) -> list[Tensor]:
        flats = [*self._weights.read(), *self._statistics.read()]
        wires = self.exchange.wires
        return [
            flat.zero_().to(wire.dtype if sums else flat.dtype)
            for flat, wire in zip(flats, wires, strict=True)
        ]


def _numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}
