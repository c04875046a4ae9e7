"""The exchange that every averaging strategy uses: a mean over nodes that nobody waits for until it is due.

One rank speaks for each node, by turns; what its group sums is then shared inside the node, in the type
of the wire, and every rank decodes it for itself. With weights cut over the node's ranks
(`inside=sharded`) every rank speaks for its own part, and there is nothing to share.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from syncline.strategies.averaging.nodes import NodeGroups
from syncline.strategies.averaging.wire import Average, Sent, Wire


@dataclass(slots=True, kw_only=True)
class Pending:
    """Buckets under way, and what they were when they were sent."""

    values: list[Tensor]
    """This node's own."""
    sent: list[Sent]
    works: list[dist.Work] = field(default_factory=list)
    """Empty on ranks that do not speak, and when the sums have arrived."""
    speaker: int | None = None
    """The rank of this node that gets the sums; None when they have arrived."""

    @property
    def has_arrived(self) -> bool:
        """Whether this rank need not wait for the link."""
        return all(work.is_completed() for work in self.works)


@dataclass(slots=True)
class ExchangeTimes:
    """What exchanges have cost so far on this rank."""

    exchanges: int = 0
    exposed_s: float = 0.0
    """Seconds in which this rank stood still for them."""


class Exchange:
    """Averages fixed buckets of numbers over nodes.

    Args:
        groups: The nodes' process groups.
        wires: The encoding of each bucket.
        every_rank: Every rank speaks for its own part, instead of one for its node.
    """

    def __init__(self, groups: NodeGroups, wires: Sequence[Wire], *, every_rank: bool = False) -> None:
        self.groups = groups
        self.wires = list(wires)
        self.turn = 0
        self.times = ExchangeTimes()
        self._every_rank = every_rank

    def start(self, values: list[Tensor]) -> Pending:
        """Post the sums of this node's values; the values must not be changed any more."""
        sent = [wire.encode(each, self.groups.share) for wire, each in zip(self.wires, values, strict=True)]
        group = self.groups.own_across() if self._every_rank else self.groups.across(self.turn)
        works = []
        if group is not None and self.groups.count > 1:
            works = [_sum(bucket.values, group) for bucket in sent]
        pending = Pending(values=values, sent=sent, works=works, speaker=self.groups.speaker(self.turn))
        self.turn = (self.turn + 1) % self.groups.nodes.turns
        return pending

    def arrive(self, pending: Pending) -> None:
        """Wait for the sums, and share them in the node; does nothing when that is done."""
        if pending.speaker is None:
            return
        began_s = time.perf_counter()
        for work in pending.works:
            work.wait()
        if self.groups.size > 1 and self.groups.count > 1 and not self._every_rank:
            self._share(pending.sent, pending.speaker)
        pending.works, pending.speaker = [], None
        self.times.exchanges += 1
        self.times.exposed_s += time.perf_counter() - began_s

    def finish(self, pending: Pending) -> list[Average]:
        """The averages, waited for if need be. Every rank of the nodes must come here."""
        self.arrive(pending)
        return [
            wire.decode(sent, values)
            for wire, sent, values in zip(self.wires, pending.sent, pending.values, strict=True)
        ]

    def arrived(self, values: list[Tensor], sums: list[Tensor]) -> Pending:
        """An exchange of these values as if it had arrived with these sums."""
        sent = [wire.encode(each, self.groups.share) for wire, each in zip(self.wires, values, strict=True)]
        for bucket, total in zip(sent, sums, strict=True):
            bucket.values = total
        return Pending(values=values, sent=sent)

    def average(self, values: list[Tensor]) -> list[Average]:
        """Start and finish."""
        return self.finish(self.start(values))

    def _share(self, buckets: Sequence[Sent], speaker: int) -> None:
        works = [
            dist.broadcast(bucket.values, src=speaker, group=self.groups.inside, async_op=True)
            for bucket in buckets
        ]
        for work in works:
            if work is not None:
                work.wait()


def _sum(values: Tensor, group: dist.ProcessGroup) -> dist.Work:
    work = dist.all_reduce(values, group=group, async_op=True)
    if work is None:
        raise TypeError("a rank that speaks for its node is in the group")
    return work
