"""Bounded queues between stages: posted receives and few sends in flight, so that a slow stage holds up
the one before it and nobody else.

A receiver posts as many receives as the queue is long; a sender keeps as many sends unfinished and waits for
the oldest before the next. That wait is the whole backpressure. What a stage sends arrives in order, so
every stage does the same things in the same order whatever the timing; the markers say what comes next.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.under_way import unrecorded, wait_for


class Marker(IntEnum):
    """What a stage announces to the next one."""

    TRAIN = 0
    EVALUATE = 1
    CHECKPOINT = 2


class Sender:
    """This rank's end of a queue to another rank."""

    def __init__(self, group: dist.ProcessGroup, to: int, length: int) -> None:
        self.sent_bytes = 0
        self._group = group
        self._to = to
        self._length = length
        self._flying: deque[tuple[dist.Work | None, Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        """Send a tensor that nobody changes any more; waits while the queue is full."""
        while len(self._flying) >= self._length:
            self._finish_oldest()
        payload = tensor.detach().contiguous()
        self.sent_bytes += payload.nbytes
        with unrecorded():
            self._flying.append((dist.isend(payload, dst=self._to, group=self._group), payload))

    def _finish_oldest(self) -> None:
        work, _ = self._flying.popleft()
        wait_for(work)


class Receiver:
    """This rank's end of a queue from another rank, with room posted for what comes."""

    def __init__(self, group: dist.ProcessGroup, source: int, example: Tensor, length: int) -> None:
        """`example` has the shape, type and device of every tensor that comes."""
        self._group = group
        self._source = source
        self._example = example
        self._posted: deque[tuple[dist.Work | None, Tensor]] = deque()
        for _ in range(length):
            self._post()

    def receive(self) -> Tensor:
        """The next tensor; room for another is posted at once."""
        if not self._posted:
            self._post()
        work, buffer = self._posted.popleft()
        wait_for(work)
        self._post()
        return buffer

    def _post(self) -> None:
        buffer = torch.empty_like(self._example)
        with unrecorded():
            self._posted.append((dist.irecv(buffer, src=self._source, group=self._group), buffer))


class Markers:
    """The order of things, told from stage to stage beside the activations."""

    def __init__(
        self, group: dist.ProcessGroup, *, before: int | None, after: int | None, length: int
    ) -> None:
        # Markers are for the host: they go by way of the CPU.
        example = torch.zeros(2, dtype=torch.int64)
        self._receiver = None if before is None else Receiver(group, before, example, length)
        self._sender = None if after is None else Sender(group, after, length)
        self._passed = 0

    def pass_on(self, marker: Marker) -> None:
        """Check that the stage before does the same next, and tell the one after."""
        told = torch.tensor([marker, self._passed])
        if self._receiver is not None:
            given = self._receiver.receive()
            if not torch.equal(given, told):
                kinds = [Marker(int(one[0])).name.lower() for one in (told, given)]
                raise RuntimeError(
                    f"stages are out of step: this one is to {kinds[0]} (number {self._passed}), the one "
                    f"before announces {kinds[1]} (number {int(given[1])})"
                )
        if self._sender is not None:
            self._sender.send(told)
        self._passed += 1
