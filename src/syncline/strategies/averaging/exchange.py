"""The exchange that every averaging strategy uses: a mean over nodes that nobody waits for until it is due.

One rank speaks for each node, by turns; what its group sums is then shared inside the node, in the type
of the wire, and every rank decodes it for itself. With weights cut over the node's ranks
(`inside=sharded`) every rank speaks for its own part, and there is nothing to share.
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
    """Buckets under way, and what they were when they were sent."""

    values: list[Tensor]
    """This node's own."""
    wires: list[Wire]
    sent: list[Sent]
    flats: list[Tensor] = field(default_factory=list)
    """What the collectives carry: the values that were sent, one after another."""
    works: list[dist.Work] = field(default_factory=list)
    """Empty on ranks that do not speak, and when the sums have arrived."""
    speaker: int | None = None
    """The rank of this node that gets the sums; None when all ranks of the node have them."""
    shares: list[dist.Work] = field(default_factory=list)
    """The sums on their way to the other ranks of the node."""

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

    def start(self, wires: list[Wire], values: list[Tensor]) -> Pending:
        """Post the sums of this node's values; the values must not be changed any more."""
        flats, places = _places(wires, values, self.rooms)
        sent = self._encode(wires, values, places)
        group = self.groups.own_across() if self._every_rank else self.groups.across(self.turn)
        works = []
        if group is not None and self.groups.count > 1:
            works = [_sum(flat, group) for flat in flats]
        speaker = self.groups.speaker(self.turn)
        pending = Pending(values=values, wires=wires, sent=sent, flats=flats, works=works, speaker=speaker)
        self.turn = (self.turn + 1) % self.groups.nodes.turns
        return pending

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

    def share(self, pending: Pending) -> None:
        """Wait for the sums, and begin to share them in the node; every rank of the node must call this."""
        self.wait(pending)
        several = self.groups.size > 1 and self.groups.count > 1
        if several and not self._every_rank and pending.speaker is not None:
            pending.shares = [_spread(flat, pending.speaker, self.groups.inside) for flat in pending.flats]

    def arrive(self, pending: Pending) -> None:
        """Wait until the sums are shared in the node; every rank of the node must call this.

        Does nothing when that is done.
        """
        if pending.speaker is None:
            return
        if not pending.shares:
            self.share(pending)
        began_s = time.perf_counter()
        for work in pending.shares:
            wait_for(work)
        pending.speaker, pending.shares = None, []
        self.times.exchanges += 1
        self.times.exposed_s += time.perf_counter() - began_s

    def finish(self, pending: Pending) -> list[Average]:
        """The averages, waited for if need be. Every rank of the nodes must come here."""
        self.arrive(pending)
        return [wire.decode(sent) for wire, sent in zip(pending.wires, pending.sent, strict=True)]

    def arrived(self, wires: list[Wire], values: list[Tensor], sums: list[Tensor]) -> Pending:
        """An exchange of these values as if it had arrived with these sums.

        The wires must be as they were when the values were sent.
        """
        sent = self._encode(wires, values, _places(wires, values, self.rooms)[1])
        for bucket, total in zip(sent, sums, strict=True):
            bucket.values = total
        return Pending(values=values, wires=wires, sent=sent)

    def average(self, wires: list[Wire], values: list[Tensor]) -> list[Average]:
        """Start and finish."""
        return self.finish(self.start(wires, values))

    def let_go(self, pending: Pending) -> None:
        """Use the memory of a finished exchange again: nobody needs its values and averages any more."""
        unsent = [sent.unsent for sent in pending.sent if sent.unsent is not None]
        for tensor in (*pending.values, *pending.flats, *unsent):
            self.rooms.give(tensor)

    def _encode(
        self, wires: Sequence[Wire], values: Sequence[Tensor], places: Sequence[Tensor]
    ) -> list[Sent]:
        return [
            wire.encode(each, self.groups.share, place, self.rooms)
            for wire, each, place in zip(wires, values, places, strict=True)
        ]


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
