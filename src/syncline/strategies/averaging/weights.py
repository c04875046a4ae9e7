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
from syncline.strategies.averaging.merging import ByPaper, TakeOver
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
        # A mix of both keeps variances positive, which a movement added to them might not.
        self._mix = ByPaper(count)
        self.exchange = Exchange(work.groups, every_rank=work.inside.is_sharded)
        # By turn: those who speak in it know what was said there last.
        self._wires = {
            turn: [Wire(work.wire, count) for _ in self._weights.sizes] for turn in self.exchange.own_turns
        }
        self._plain = [Wire("fp32", count) for _ in self._statistics.sizes]
        self.rebase()
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
        if (turn := self.exchange.own_turn) is None:
            pending = self.exchange.listen()
        else:
            rooms, wires = self.exchange.rooms, [*self._wires[turn], *self._plain]
            values = self._weights.read(weights, rooms) + self._statistics.read(statistics, rooms)
            pending = self.exchange.start([wires[at] for at in places], values)
        self.under_way = UnderWay(
            pending=pending, places=places, first=first, pieces=pieces, started=step, due=step + wait
        )
        self._next = (first + pieces) % PIECES

    def share(self) -> None:
        """Begin to tell the node of what is under way, waited for if need be; unless that has begun.

        Every rank of the node must call this.
        """
        if self.under_way is not None and self.under_way.pending.told is None:
            pending = self.under_way.pending
            self.exchange.tell(pending, self._told(pending, self.under_way.places))

    def merge(self, step: int) -> None:
        """Take over what is under way, if anything is."""
        self.share()
        under_way, self.under_way = self.under_way, None
        if under_way is not None:
            self._finish(under_way, step)

    def start_then_merge(self, step: int, wait: int, pieces: int = PIECES) -> None:
        """Send the values as they are before what is under way is taken over."""
        self.share()
        under_way = self.under_way
        self.start(step, wait, pieces)
        if under_way is not None:
            self._finish(under_way, step)

    def rebase(self, known: Sequence[Tensor] | None = None) -> None:
        """Forget what is under way: all nodes know the same values now, by default the weights."""
        self.under_way = None
        values = known or self._weights.read()
        for wires in self._wires.values():
            for wire, each in zip(wires, values, strict=True):
                wire.rebase(each)

    def read(self) -> list[Tensor]:
        """The weights now, as flat copies."""
        return self._weights.read()

    def _places(self, first: int, pieces: int) -> list[int]:
        """The buckets of so many pieces from the first on: of weights, then of statistics."""
        numbers = {(first + number) % PIECES for number in range(pieces)}
        count = len(self._weights)
        weights = [bucket for bucket in range(count) if bucket * PIECES // count in numbers]
        return weights + [count + number for number in range(len(self._statistics)) if 0 in numbers]

    def _by_kind(self, places: Sequence[int]) -> tuple[list[int], list[int]]:
        """Buckets of weights, and buckets of statistics."""
        count = len(self._weights)
        return [at for at in places if at < count], [at - count for at in places if at >= count]

    def _told(self, pending: Pending, places: Sequence[int]) -> list[Tensor]:
        """What this rank tells the node of averages; on ranks that do not speak, room for it."""
        if not pending.wires:
            rooms, device = self.exchange.rooms, self._work.job.device
            return [rooms.take(self._told_sizes[at], torch.float32, device) for at in places]
        own = len(self._by_kind(places)[0])
        averages = self.exchange.averages(pending)
        weights = [self._take_over.tell(average) for average in averages[:own]]
        return weights + [self._mix.tell(average) for average in averages[own:]]

    def _finish(self, under_way: UnderWay, step: int) -> None:
        self.exchange.arrive(under_way.pending)
        told, waited = under_way.pending.told or [], step - under_way.started
        weights, statistics = self._by_kind(under_way.places)
        merge = self._take_over.merge(told[: len(weights)], waited)
        self._weights.blend(merge.keep, merge.changes, weights)
        mix = self._mix.merge(told[len(weights) :], waited)
        self._statistics.blend(mix.keep, mix.changes, statistics)
        self.exchange.let_go(under_way.pending)

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, besides tensors; waits for what is under way."""
        told = None
        if (under_way := self.under_way) is not None:
            self.share()
            self.exchange.arrive(under_way.pending)
            told = {name: getattr(under_way, name) for name in ("first", "pieces", "started", "due")}
        return {"under_way": told, "next": self._next, "turn": self.exchange.turn}

    def tensors(self) -> dict[str, Tensor]:
        """What the node has been told of what is under way, and zeros for all that is not."""
        told = [torch.zeros(size, device=self._work.job.device) for size in self._told_sizes]
        if self.under_way is not None:
            for at, values in zip(self.under_way.places, self.under_way.pending.told or [], strict=True):
                told[at] = values
        return {f"told.{at}": values for at, values in enumerate(told)}

    def known(self) -> dict[str, Tensor]:
        """What this rank and those it speaks to know, with a 16-bit wire, and how it is scaled."""
        named = {
            f"known.{turn}.{at}": wire.reference
            for turn, wires in self._wires.items()
            for at, wire in enumerate(wires)
            if wire.reference is not None
        }
        if named:
            named |= {f"scales.{turn}": scales_of(wires) for turn, wires in self._wires.items()}
        return named

    def apply(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `state`, `tensors` and `known` gave."""
        self.under_way = None
        self.exchange.turn, self._next = state["turn"], state["next"]
        if (told := state["under_way"]) is not None:
            places = self._places(told["first"], told["pieces"])
            pending = Pending(told=[tensors[f"told.{at}"].clone() for at in places])
            self.under_way = UnderWay(pending=pending, places=places, **told)
        for turn, wires in self._wires.items():
            for at, wire in enumerate(wires):
                if wire.reference is not None:
                    wire.rebase(tensors[f"known.{turn}.{at}"])
                    wire.scale = tensors[f"scales.{turn}"][at].item()

    @property
    def _told_sizes(self) -> list[int]:
        """How many numbers a node is told of each bucket."""
        return [self._take_over.parts * size for size in self._weights.sizes] + self._statistics.sizes
