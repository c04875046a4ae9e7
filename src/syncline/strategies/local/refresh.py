"""Refreshing copies of the readout that its owner, the last stage, keeps training; see `shared`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.stages.layout import Layout
from syncline.strategies.under_way import unrecorded, wait_for


class Refresh:
    """One rank's side: it sends snapshots when it owns the weights, and takes them when it reads copies."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        layout: Layout,
        readers: Sequence[Sequence[str]],
        copies: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
        *,
        period: int,
    ) -> None:
        """`readers` are the names that each place reads; `state` is the owner's, `copies` the readers'."""
        self.sent_bytes = 0
        self._group = group
        self._layout = layout
        self._readers = readers
        self._state = state
        self._period = period
        self._names = list(readers[layout.place])
        self._copies = {name: copies[name] for name in self._names}
        self._next = {name: tensor.detach().clone() for name, tensor in self._copies.items()}
        self._arriving: list[dist.Work | None] = []
        self._flying: list[tuple[dist.Work | None, Tensor]] = []

    @property
    def all_names(self) -> list[str]:
        """The weights that some place reads copies of: the same on every rank."""
        return sorted({name for names in self._readers for name in names})

    def begin(self, step: int) -> None:
        """At the beginning of the step after `step` others: swap, and exchange the next snapshot."""
        if step % self._period == 0:
            if step:
                self._swap()
            self._exchange()

    def start_from_owner(self) -> None:
        """Take the owner's present weights at once; every rank must call this."""
        self._exchange()
        self._swap()

    def snapshots(self) -> dict[str, Tensor]:
        """What a checkpoint must hold: the copies in use, and those that come next."""
        self._arrive()
        return {
            **{f"current.{name}": tensor for name, tensor in self._copies.items()},
            **{f"next.{name}": tensor for name, tensor in self._next.items()},
        }

    def _swap(self) -> None:
        self._arrive()
        with torch.no_grad():
            for name, tensor in self._copies.items():
                tensor.copy_(self._next[name])

    def _arrive(self) -> None:
        for work in self._arriving:
            wait_for(work)
        self._arriving.clear()

    def _exchange(self) -> None:
        owner = self._layout.depth - 1
        if not any(self._readers):
            return
        for work, _ in self._flying:
            wait_for(work)
        self._flying.clear()
        if self._layout.place == owner:
            self._send_snapshots()
        else:
            source = self._layout.rank_at(owner)
            with unrecorded():
                self._arriving = [
                    dist.irecv(self._next[name], src=source, group=self._group) for name in self._names
                ]

    def _send_snapshots(self) -> None:
        with torch.no_grad():
            for name in self._names:
                self._next[name].copy_(self._state[name])
        for place, names in enumerate(self._readers[: self._layout.place]):
            for name in names:
                snapshot = self._state[name].detach().clone()
                self.sent_bytes += snapshot.nbytes
                with unrecorded():
                    work = dist.isend(snapshot, dst=self._layout.rank_at(place), group=self._group)
                self._flying.append((work, snapshot))
