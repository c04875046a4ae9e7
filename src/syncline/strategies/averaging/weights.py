"""Exchanging weights and statistics between nodes: one average under way at a time.

The weights are cut into pieces, and an exchange carries one or several of them, in turns. A piece of a slow
exchange arrives sooner than all weights would, and what is merged is less stale for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from syncline.strategies.averaging.buckets import Buckets, float_buffers, trained_parameters
from syncline.strategies.averaging.exchange import Exchange, Pending
from syncline.strategies.averaging.inside import average_inside
from syncline.strategies.averaging.merging import TakeOver, by_paper
from syncline.strategies.averaging.node_work import NodeWork
from syncline.strategies.averaging.schedule import PIECES
from syncline.strategies.averaging.wire import Wire, scales_of


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """An exchange that has been started."""

    pending: Pending
    places: list[int]
    """The buckets that were sent."""
    first: int
    """The piece that they begin with."""
    pieces: int
    """How many pieces they are."""
    started: int
    """The step after which it was sent."""
    due: int
    """The step after which it is merged."""


class WeightExchange:
    """Sends what a node's weights are, and takes over the average when it is due.

    Args:
        work: The job and its nodes, whose weights are equal now.
        take_over: How a node takes over an average.
        parameters: What is exchanged; by default all that is trained.
        statistics: The buffers that go with the first piece; by default all.
        cut: Whether exchanges may carry a part of the weights.
    """

    def __init__(
        self,
        work: NodeWork,
        take_over: TakeOver,
        *,
        parameters: Sequence[nn.Parameter] | None = None,
        statistics: Sequence[Tensor] | None = None,
        cut: bool = False,
    ) -> None:
        self._work = work
        self._take_over = take_over
        weights = trained_parameters(work.model) if parameters is None else parameters
        self._weights = Buckets(weights, least=PIECES if cut else 1)
        self._statistics = Buckets(float_buffers(work.model) if statistics is None else statistics)
        count = work.groups.count
        self._wires = [Wire(work.wire, count, values) for values in self._weights.read()]
        self._plain = [Wire("fp32", count) for _ in range(len(self._statistics))]
        self.exchange = Exchange(work.groups, every_rank=work.inside.is_sharded)
        self._next = 0
        """The piece that the next exchange begins with."""
        self.under_way: UnderWay | None = None

    def start(self, step: int, wait: int, pieces: int = PIECES) -> None:
        """Send so many pieces as they are after this step, to be merged after `wait` more."""
        first = self._next
        places = self._places(first, pieces)
        weights, statistics = self._by_kind(places)
        if statistics:
            average_inside(self._statistics, self._work.groups)
        rooms = self.exchange.rooms
        values = self._weights.read(weights, rooms) + self._statistics.read(statistics, rooms)
        pending = self.exchange.start(self._wires_of(places), values)
        self.under_way = UnderWay(
            pending=pending, places=places, first=first, pieces=pieces, started=step, due=step + wait
        )
        self._next = (first + pieces) % PIECES

    def merge(self, step: int) -> None:
        """Take over what is under way, if anything is."""
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            self._finish(under_way, step)

    def start_then_merge(self, step: int, wait: int, pieces: int = PIECES) -> None:
        """Send the values as they are before what is under way is taken over."""
        under_way = self.under_way
        self.start(step, wait, pieces)
        if under_way is not None:
            self._finish(under_way, step)

    def rebase(self, known: Sequence[Tensor] | None = None) -> None:
        """Forget what is under way: all nodes know the same values now, by default the weights."""
        self.under_way = None
        for wire, values in zip(self._wires, known or self._weights.read(), strict=True):
            wire.rebase(values)

    def read(self) -> list[Tensor]:
        """The weights now, as flat copies."""
        return self._weights.read()

    def _places(self, first: int, pieces: int) -> list[int]:
        """The buckets of so many pieces from the first on: of weights, then of statistics."""
        numbers = {(first + number) % PIECES for number in range(pieces)}
        count = len(self._wires)
        weights = [bucket for bucket in range(count) if bucket * PIECES // count in numbers]
        return weights + [count + number for number in range(len(self._plain)) if 0 in numbers]

    def _by_kind(self, places: Sequence[int]) -> tuple[list[int], list[int]]:
        """Buckets of weights, and buckets of statistics."""
        count = len(self._wires)
        return [at for at in places if at < count], [at - count for at in places if at >= count]

    def _wires_of(self, places: Sequence[int]) -> list[Wire]:
        wires = [*self._wires, *self._plain]
        return [wires[at] for at in places]

    def _finish(self, under_way: UnderWay, step: int) -> None:
        averages, waited = self.exchange.finish(under_way.pending), step - under_way.started
        weights, statistics = self._by_kind(under_way.places)
        own, sent = len(weights), under_way.pending.values
        merge = self._take_over(averages[:own], sent[:own], waited)
        self._weights.blend(merge.keep, merge.changes, weights)
        # A mix of both keeps variances positive, which a movement added to them might not.
        mix = by_paper(self._work.groups.count)(averages[own:], sent[own:], waited)
        self._statistics.blend(mix.keep, mix.changes, statistics)
        self.exchange.let_go(under_way.pending)

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, besides tensors; waits for what is under way."""
        told = None
        if (under_way := self.under_way) is not None:
            self.exchange.arrive(under_way.pending)
            told = {key: getattr(under_way, key) for key in ("first", "pieces", "started", "due")}
        return {"under_way": told, "next": self._next, "turn": self.exchange.turn}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of what is under way, and zeros for all that is not."""
        values = [flat.zero_() for flat in (*self._weights.read(), *self._statistics.read())]
        wires = [*self._wires, *self._plain]
        sums = [torch.zeros_like(flat, dtype=wire.dtype) for flat, wire in zip(values, wires, strict=True)]
        bases = {at: flat.clone() for at, flat in enumerate(values) if wires[at].reference is not None}
        scales = scales_of(wires)
        if self.under_way is not None:
            pending = self.under_way.pending
            for at, value, sent in zip(self.under_way.places, pending.values, pending.sent, strict=True):
                values[at], sums[at], scales[at] = value, sent.values, sent.scale
                if sent.reference is not None:
                    bases[at] = sent.reference
        named = {f"bases.{at}": base for at, base in bases.items()} | {"sent_scales": scales}
        return _numbered("values", values) | _numbered("sums", sums) | named

    def known(self) -> dict[str, Tensor]:
        """What all nodes know, with a 16-bit wire, and how it is scaled."""
        references = [wire.reference for wire in self._wires if wire.reference is not None]
        return _numbered("known", references) | ({"scales": scales_of(self._wires)} if references else {})

    def apply(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `state` and `tensors` gave."""
        self.under_way = None
        self.exchange.turn, self._next = state["turn"], state["next"]
        if (told := state["under_way"]) is not None:
            self.under_way = self._restored(told, tensors)
        for number, wire in enumerate(self._wires):
            if wire.reference is not None:
                wire.rebase(tensors[f"known.{number}"])
                wire.scale = tensors["scales"][number].item()

    def _restored(self, told: dict[str, Any], tensors: dict[str, Tensor]) -> UnderWay:
        """What was under way, sent anew by wires as they were then."""
        places = self._places(told["first"], told["pieces"])
        wires = self._wires_of(places)
        for at, wire in zip(places, wires, strict=True):
            wire.scale = tensors["sent_scales"][at].item()
            if wire.reference is not None:
                wire.rebase(tensors[f"bases.{at}"])
        values = [tensors[f"values.{at}"].clone() for at in places]
        sums = [tensors[f"sums.{at}"].clone() for at in places]
        return UnderWay(pending=self.exchange.arrived(wires, values, sums), places=places, **told)


def _numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}
