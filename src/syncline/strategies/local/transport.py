"""What a stage exchanges with its neighbours: activations forward, markers beside them, and with an overlap
the cotangents of its neighbour's own loss back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.local.queues import Markers, Receiver, Sender
from syncline.strategies.stages.layout import Layout


class Transport:
    """One rank's queues to its neighbours."""

    def __init__(
        self,
        layout: Layout,
        groups: Sequence[dist.ProcessGroup],
        *,
        entry: Tensor | None,
        exit: Tensor | None,
        queue: int,
        sends_back: int,
        gets_back: int,
    ) -> None:
        """Entry and exit are like what comes and goes; None at the ends.

        `sends_back` and `gets_back` count the cotangents that go to the stage before and come from the next.
        """
        before = layout.rank_at(layout.place - 1) if entry is not None else None
        after = layout.rank_at(layout.place + 1) if exit is not None else None
        forward, markers, backward = groups
        self.markers = Markers(markers, before=before, after=after, length=queue)
        self._receiver = None if before is None or entry is None else Receiver(forward, before, entry, queue)
        self._sender = None if after is None else Sender(forward, after, queue)
        self._back_sender = None if before is None or not sends_back else Sender(backward, before, queue)
        self._back_receiver: Receiver | None = None
        if after is not None and exit is not None and gets_back:
            example = exit.new_empty((gets_back, *exit.shape))
            self._back_receiver = Receiver(backward, after, example, 1)

    @property
    def forward_bytes(self) -> int:
        """Activations sent to the next stage so far."""
        return 0 if self._sender is None else self._sender.sent_bytes

    @property
    def backward_bytes(self) -> int:
        """Cotangents sent to the stage before so far."""
        return 0 if self._back_sender is None else self._back_sender.sent_bytes

    def receive_activation(self) -> Tensor | None:
        """What the stage before sent; None at the first stage."""
        return None if self._receiver is None else self._receiver.receive()

    def send_activation(self, activation: Tensor) -> None:
        """Hand on to the next stage; waits while the queue to it is full."""
        if self._sender is not None:
            self._sender.send(activation)

    def receive_cotangents(self) -> list[Tensor]:
        """What the next stage's losses say of what this one sent; nothing without an overlap."""
        return [] if self._back_receiver is None else list(self._back_receiver.receive().unbind())

    def send_cotangents(self, cotangents: Sequence[Tensor]) -> None:
        """Tell the stage before what the losses say of what it sent."""
        if self._back_sender is not None and cotangents:
            self._back_sender.send(torch.stack(list(cotangents)))


def open_groups(layout: Layout, count: int) -> list[dist.ProcessGroup]:
    """Groups of this pipeline's ranks, one for each kind of message: order within a kind is the protocol.

    Every rank must call this.
    """
    own: list[dist.ProcessGroup] = []
    for _ in range(count):
        for replica in range(layout.replicas):
            ranks = [place * layout.replicas + replica for place in range(layout.depth)]
            group = dist.new_group(ranks)
            if replica == layout.replica and isinstance(group, dist.ProcessGroup):
                own.append(group)
    return own
