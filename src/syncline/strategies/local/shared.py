"""Weights that a block uses and another owns: how their newest values get there.

A weight owned by an earlier block goes forward with each batch, so that it is as old as the batch. A weight
owned by a later block, the readout of a model that ties nothing, is refreshed every so many steps: what its
owner has after step t is used from step t + period on. That is time enough for it to arrive, so nobody waits,
and it depends on step numbers alone, so the result does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.local.building import BlockPlan
from syncline.strategies.local.queues import Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Which weights cross between places of a pipeline; the same on every rank."""

    forward: tuple[tuple[str, ...], ...]
    """For each place, the names that it sends on to the next."""
    refreshed: tuple[tuple[str, ...], ...]
    """For each place, the names that the last place refreshes."""


def plan_sharing(plans: Sequence[BlockPlan], owned_by: Mapping[str, int], places: Sequence[int]) -> Sharing:
    """What must cross, when block j is at place `places[j]`."""
    depth = max(places) + 1
    forward: list[list[str]] = [[] for _ in range(depth)]
    refreshed: list[list[str]] = [[] for _ in range(depth)]
    for plan in plans:
        here = places[plan.index]
        for name in plan.reads:
            owner = places[owned_by[name]]
            if owned_by[name] > plan.index:
                refreshed[here].append(name)
            for place in range(owner, here):
                forward[place].append(name)
    unique = [tuple(tuple(sorted(set(names))) for names in by_place) for by_place in (forward, refreshed)]
    return Sharing(forward=unique[0], refreshed=unique[1])


class Forwarding:
    """Sends weights along with batches, and takes those that come."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        copies: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        *,
        before: int | None,
        after: int | None,
        incoming: Sequence[str],
        outgoing: Sequence[str],
        length: int,
    ) -> None:
        """`copies` holds, for each name that comes, a tensor that takes its values; `state` what goes."""
        self._copies = copies
        self._state = state
        self._incoming = list(incoming)
        self._outgoing = list(outgoing)
        self._group, self._before = group, before
        self._sender = None if after is None or not outgoing else Sender(group, after, length * len(outgoing))

    def receive(self) -> None:
        """Take over what comes with a batch."""
        for name in self._incoming:
            if self._before is None:
                continue
            received = torch.empty_like(self._copies[name])
            dist.recv(received, src=self._before, group=self._group)
            with torch.no_grad():
                self._copies[name].copy_(received)

    def send(self) -> None:
        """Send what later places need, as it is now."""
        if self._sender is None:
            return
        for name in self._outgoing:
            # The optimizer changes weights in place while they are on their way.
            self._sender.send(self._state[name].detach().clone())

    @property
    def sent_bytes(self) -> int:
        """Of weights, so far."""
        return 0 if self._sender is None else self._sender.sent_bytes
