"""The exchange that every averaging strategy uses: a mean over nodes that nobody waits for until it is due.

One rank speaks for each node, by turns: it sends what the node has, works out what its ranks are to do with
the sums, and tells them. So the work on an exchange is done once in a node, not by each of its ranks. With
weights cut over the node's ranks (`inside=sharded`) every rank speaks for its own part, and there is
nothing to tell.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.averaging.buckets import BUCKET_BYTES
from syncline.strategies.averaging.nodes import NodeGroups
from syncline.strategies.averaging.rooms import Rooms
from syncline.strategies.averaging.wire import Average, Sent, Wire
from syncline.strategies.under_way import unrecorded, wait_for


@dataclass(slots=True, kw_only=True)
class Pending:
    """Buckets under way."""

    wires: list[Wire] = field(default_factory=list)
    """Empty on ranks that do not speak, as what follows."""
    sent: list[Sent] = field(default_factory=list)
    flats: list[Tensor] = field(default_factory=list)
    """What the collectives carry: the values that were sent, one after another."""
    works: list[dist.Work] = field(default_factory=list)
    """Empty when the sums have arrived, too."""
    speaker: int | None = None
    """The rank that tells the others of its node; None when all have been told."""
    told: list[Tensor] | None = None
    """What it tells; None until it begins to."""
    shares: list[dist.Work] = field(default_factory=list)
    """That on its way to the other ranks of the node."""

    @property
    def has_arrived(self) -> bool:
        """Whether this rank need not wait for the link: the sums are here, or a peer is gone."""
        return all(work.is_completed() for work in self.works)

    def settle(self) -> None:
        """Wait for the sums; what has arrived is asked too, for a work that failed is completed as well."""
        for work in self.works:
            wait_for(work)
        self.works = []


@dataclass(slots=True)
class ExchangeTimes:
    """What exchanges have cost so far on this rank."""

    exchanges: int = 0
    exposed_s: float = 0.0
    """Seconds in which this rank stood still for them."""


class Exchange:
    """Averages buckets of numbers over nodes, each encoded by its wire.

    Args:
        groups: The nodes' process groups.
        every_rank: Every rank speaks for its own part, instead of one for its node.
    """

    def __init__(self, groups: NodeGroups, *, every_rank: bool = False) -> None:
        self.groups = groups
        self.turn = 0
        self.times = ExchangeTimes()
        self.rooms = Rooms()
        self._every_rank = every_rank

    @property
    def own_turns(self) -> list[int]:
        """The turns in which this rank speaks; the first stands for all where every rank does."""
        turns = range(1 if self._every_rank else self.groups.nodes.turns)
        return [turn for turn in turns if self._every_rank or self.groups.across(turn) is not None]

    @property
    def own_turn(self) -> int | None:
        """The turn of the next exchange, if this rank speaks in it."""
        turn = 0 if self._every_rank else self.turn
        return turn if turn in self.own_turns else None

    def start(self, wires: list[Wire], values: list[Tensor]) -> Pending:
        """Post the sums of this node's values, which must not be changed any more.

        Ranks that do not speak encode them for themselves, or `listen`.
        """
        flats, places = _places(wires, values, self.rooms)
        sent = [
            wire.encode(each, self.groups.share, place, self.rooms)
            for wire, each, place in zip(wires, values, places, strict=True)
        ]
        group = self.groups.own_across() if self._every_rank else self.groups.across(self.turn)
        works = []
        if group is not None and self.groups.count > 1:
            works = [_sum(flat, group) for flat in flats]
        return Pending(wires=wires, sent=sent, flats=flats, works=works, speaker=self._next_speaker())

    def listen(self) -> Pending:
        """An exchange in which another rank speaks for this one's node."""
        return Pending(speaker=self._next_speaker())

    def wait(self, pending: Pending) -> None:
        """Wait for the sums on a rank that speaks for its node; others of the node need not call this."""
        if pending.has_arrived:
            pending.settle()
            return
        device = pending.flats[0].device
        _drain(device)
        began_s = time.perf_counter()
        pending.settle()
        _drain(device)
        self.times.exposed_s += time.perf_counter() - began_s

    def averages(self, pending: Pending) -> list[Average]:
        """What the sums come to, waited for if need be; on ranks that encoded the values."""
        self.wait(pending)
        return [wire.decode(sent, self.rooms) for wire, sent in zip(pending.wires, pending.sent, strict=True)]

    def tell(self, pending: Pending, told: list[Tensor]) -> None:
        """Begin to tell the node; every rank of it must call this, with room for what it hears."""
        pending.told = told
        pending.shares = self._spread(told, pending.speaker)

    def arrive(self, pending: Pending) -> None:
        """Wait until the node has been told. Does nothing when that is done."""
        if pending.speaker is None:
            return
        self._wait_for(pending.shares)
        pending.speaker, pending.shares = None, []
        self.times.exchanges += 1

    def average(self, wires: list[Wire], values: list[Tensor]) -> list[Average]:
        """The averages, waited for and decoded by every rank; all ranks of all nodes must call this."""
        pending = self.start(wires, values)
        self.wait(pending)
        if self.groups.count > 1:
            self._wait_for(self._spread(pending.flats, pending.speaker))
        self.times.exchanges += 1
        return self.averages(pending)

    def let_go(self, pending: Pending) -> None:
        """Use the memory of a finished exchange again: nobody needs its values and averages any more."""
        if pending.told is not None and not pending.wires:
            for room in pending.told:
                self.rooms.give(room)
        made = [room for sent in pending.sent for room in (sent.movement, sent.said) if room is not None]
        # What is needed first goes last, so that the next exchange finds it there.
        for room in (*made, *pending.flats, *(sent.stood for sent in pending.sent)):
            self.rooms.give(room)

    def _next_speaker(self) -> int:
        """Who speaks for this node in the exchange that begins; the turn goes on."""
        speaker = self.groups.speaker(self.turn)
        self.turn = (self.turn + 1) % self.groups.nodes.turns
        return speaker

    def _spread(self, values: list[Tensor], speaker: int | None) -> list[dist.Work]:
        if self.groups.size == 1 or self._every_rank or speaker is None:
            return []
        return [_spread(each, speaker, self.groups.inside) for each in values]

    def _wait_for(self, works: list[dist.Work]) -> None:
        began_s = time.perf_counter()
        for work in works:
            wait_for(work)
        self.times.exposed_s += time.perf_counter() - began_s


def _places(
    wires: Sequence[Wire], values: Sequence[Tensor], rooms: Rooms
) -> tuple[list[Tensor], list[Tensor]]:
    """Empty tensors to be sent, and the part of them for each bucket: those of one type travel together."""
    runs: list[tuple[torch.dtype, list[Tensor]]] = []
    left = 0
    for wire, each in zip(wires, values, strict=True):
        size = each.numel() * wire.dtype.itemsize
        if not runs or size > left or wire.dtype != runs[-1][0]:
            runs.append((wire.dtype, []))
            left = BUCKET_BYTES
        runs[-1][1].append(each)
        left -= size
    flats, places = [], []
    for dtype, run in runs:
        sizes = [each.numel() for each in run]
        flats.append(rooms.take(sum(sizes), dtype, run[0].device))
        places += flats[-1].split(sizes)
    return flats, places


def _drain(device: torch.device) -> None:
    """Let a device finish what it was given, so that the time until then is known; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _sum(values: Tensor, group: dist.ProcessGroup) -> dist.Work:
    with unrecorded():
        return _is_member(dist.all_reduce(values, group=group, async_op=True))


def _spread(values: Tensor, speaker: int, group: dist.ProcessGroup | None) -> dist.Work:
    with unrecorded():
        return _is_member(dist.broadcast(values, src=speaker, group=group, async_op=True))


def _is_member(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise TypeError("a rank that takes part in an exchange is in its group")
    return work
