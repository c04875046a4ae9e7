"""What goes over the slow link: fp32 values, or 16-bit movements away from what all nodes know.

With a 16-bit wire node i sends d_i = round16(x_i - r), where r is the reference that all nodes share:
their last average. Everybody then has r' = r + (1/N) sum d_i. What rounding left behind, u_i = x_i - r -
d_i, is handed back as `unsent`: added to the node's own weights it is part of the next movement (error
feedback), and the mean of all r' + u_i is the true mean. So weights are never rounded, and an update too
small for 16 bits is only sent later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from syncline.strategies.averaging.rooms import Rooms

WireType: TypeAlias = Literal["fp32", "bf16", "fp16"]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_FP16_PEAK = 2.0**10
"""Where the largest movement of the last exchange is scaled to."""
_FP16_LIMIT = 2.0**15
"""What the sum over nodes may reach; fp16 ends at 65504."""
_FP16_FIRST_SCALE = 2.0**6
_CHUNK = 2**18
"""Numbers that are worked on at a time, so that they stay in a core's cache."""


@dataclass(slots=True)
class Sent:
    """One bucket on its way."""

    values: Tensor
    """In the type of the wire; summed over the nodes in place."""
    unsent: Tensor | None = None
    """What this node had to say beyond that; None with an fp32 wire, which sends everything."""
    reference: Tensor | None = None
    """What it was a movement away from, if it was one."""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Average:
    """What an exchange gives for one bucket."""

    mean: Tensor
    """The same on all nodes."""
    unsent: Tensor | None = None
    """What this node had to say beyond what 16 bits carried."""

    def own(self) -> Tensor:
        """The mean as this node takes it over, to be asked for once: it overwrites what it is made of."""
        return self.mean if self.unsent is None else self.unsent.add_(self.mean)


class Wire:
    """Encodes one bucket for the link and decodes what came back.

    Args:
        wire: The type on the link.
        nodes: How many nodes take part.
        reference: What all nodes know, their common start, kept up to date from exchange to exchange; None
            for values such as gradients, which are movements themselves.
    """

    def __init__(self, wire: WireType, nodes: int, reference: Tensor | None = None) -> None:
        self.dtype = _TYPES[wire]
        self.nodes = nodes
        self.scale = _FP16_FIRST_SCALE if wire == "fp16" else 1.0
        self.reference: Tensor | None = None
        self._latest: Sent | None = None
        if reference is not None:
            self.rebase(reference)

    def rebase(self, reference: Tensor) -> None:
        """Start from values that all nodes have alike."""
        if self.dtype != torch.float32:
            self.reference = reference.clone()

    def encode(self, values: Tensor, share: float, place: Tensor, rooms: Rooms) -> Sent:
        """Put into `place` what to send for a node's values; it counts for `share` of an average node."""
        if self.dtype == torch.float32:
            return Sent(torch.mul(values, share, out=place))
        unsent = rooms.take(values.numel(), torch.float32, values.device)
        if self.reference is None:
            unsent.copy_(values)
        else:
            torch.sub(values, self.reference, out=unsent)
        for moved, sent in zip(unsent.split(_CHUNK), place.split(_CHUNK), strict=True):
            self._send(moved, sent, self.scale * share)
        self._latest = Sent(place, unsent=unsent, reference=self.reference, scale=self.scale)
        return self._latest

    def _send(self, moved: Tensor, sent: Tensor, factor: float) -> None:
        """Round some numbers into `sent`, and leave of them what rounding did not send."""
        scaled = moved if factor == 1.0 else moved * factor
        if self.dtype == torch.float16:
            limit = _FP16_LIMIT / self.nodes
            scaled = scaled.clamp(-limit, limit)
        sent.copy_(scaled)
        moved.sub_(sent if factor == 1.0 else scaled.copy_(sent).div_(factor))

    def decode(self, sent: Sent) -> Average:
        """The average over nodes, when `sent` has been summed; what was sent is used up."""
        if sent.unsent is None:
            return Average(sent.values.div_(self.nodes))
        divisor = self.nodes * sent.scale
        self._follow(sent.values, divisor)
        if sent.reference is None:
            return Average(sent.values.float().div_(divisor), sent.unsent)
        # What was sent meanwhile is a movement away from the old reference, which then must stay as it is.
        is_last = sent is self._latest and sent.reference is self.reference
        self.reference = sent.reference if is_last else sent.reference.clone()
        for known, moved in zip(self.reference.split(_CHUNK), sent.values.split(_CHUNK), strict=True):
            known.add_(moved.float().div_(divisor))
        return Average(self.reference, sent.unsent)

    def _follow(self, sums: Tensor, divisor: float) -> None:
        """Keep the scale near the size of movements: by powers of two, from what all nodes have alike."""
        if self.dtype != torch.float16 or not sums.numel():
            return
        largest = sums.abs().max().item() / divisor
        if largest > 0 and math.isfinite(largest):
            self.scale = 2.0 ** round(math.log2(_FP16_PEAK / largest))


def scales_of(wires: Sequence[Wire]) -> Tensor:
    """The scales of wires, as a checkpoint holds them: a rank with parts of its own has its own."""
    return torch.tensor([wire.scale for wire in wires], dtype=torch.float64)
