"""What goes over the slow link: fp32 values, or 16-bit movements away from what all nodes know.

With a 16-bit wire node i sends d_i = round16(x_i - r), where r is the reference that all nodes share:
their last average. Everybody then has r' = r + (1/N) sum d_i, and node i moves by (1/N) sum d_i - d_i. What
rounding left behind, x_i - r - d_i, stays in its weights and so is part of its next movement (error
feedback), and the mean of all nodes is the true mean, but for what the sum itself is rounded by. So weights
are never rounded, and an update too small for 16 bits is only sent later.
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


@dataclass(slots=True, kw_only=True)
class Sent:
    """One bucket on its way."""

    values: Tensor
    """In the type of the wire; summed over the nodes in place."""
    stood: Tensor
    """What this node had to say."""
    said: Tensor | None = None
    """What it said of it in 16 bits, each number times `factor`; None with an fp32 wire, which says all."""
    factor: float = 1.0
    movement: Tensor | None = None
    """With 16 bits, when the average is known: as `Average.movement` gives it."""


@dataclass(frozen=True, slots=True)
class Average:
    """What an exchange gives for one bucket."""

    mean: Tensor
    """The same on all nodes."""
    sent: Sent

    def movement(self) -> Tensor:
        """From what this node said to the mean. To be asked for once, and last: it may overwrite the mean."""
        known = self.sent.movement
        return self.mean.sub_(self.sent.stood) if known is None else known

    def own(self) -> Tensor:
        """The mean as this node takes it over, with what 16 bits did not say of it; instead of `movement`."""
        known = self.sent.movement
        return self.mean if known is None else known.add_(self.sent.stood)


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
        if reference is not None:
            self.rebase(reference)

    def rebase(self, reference: Tensor) -> None:
        """Start from values that all nodes have alike."""
        if self.dtype != torch.float32:
            self.reference = reference.clone()

    def encode(self, values: Tensor, share: float, place: Tensor, rooms: Rooms) -> Sent:
        """Put into `place` what to send for a node's values; it counts for `share` of an average node."""
        if self.dtype == torch.float32:
            return Sent(values=torch.mul(values, share, out=place), stood=values)
        said, factor = rooms.take(values.numel(), self.dtype, values.device), self.scale * share
        bases = [None] * len(_chunks(values)) if self.reference is None else _chunks(self.reference)
        for each, base, sent, copy in zip(_chunks(values), bases, _chunks(place), _chunks(said), strict=True):
            self._round(each if base is None else each - base, sent, factor)
            copy.copy_(sent)
        return Sent(values=place, stood=values, said=said, factor=factor)

    def _round(self, moved: Tensor, sent: Tensor, factor: float) -> None:
        """Round some numbers, times a factor, into `sent`."""
        scaled = moved if factor == 1.0 else moved * factor
        if self.dtype == torch.float16:
            limit = _FP16_LIMIT / self.nodes
            scaled = scaled.clamp(-limit, limit)
        sent.copy_(scaled)

    def decode(self, sent: Sent, rooms: Rooms) -> Average:
        """The average over nodes, when `sent` has been summed; what was sent is used up."""
        if sent.said is None:
            return Average(sent.values.div_(self.nodes), sent)
        divisor = self.nodes * self.scale
        self._follow(sent.values, divisor)
        mean = torch.zeros_like(sent.stood) if self.reference is None else self.reference
        sent.movement = rooms.take(mean.numel(), torch.float32, mean.device)
        parts = zip(*map(_chunks, (mean, sent.movement, sent.values, sent.said)), strict=True)
        for known, moved, total, said in parts:
            known.add_(moved.copy_(total), alpha=1 / divisor)
            torch.sub(moved, said.float(), alpha=divisor / sent.factor, out=moved).div_(divisor)
        return Average(mean, sent)

    def _follow(self, sums: Tensor, divisor: float) -> None:
        """Keep the scale near the size of movements: by powers of two, from what all nodes have alike."""
        if self.dtype != torch.float16 or not sums.numel():
            return
        largest = sums.abs().max().item() / divisor
        if largest > 0 and math.isfinite(largest):
            self.scale = 2.0 ** round(math.log2(_FP16_PEAK / largest))


def _chunks(values: Tensor) -> tuple[Tensor, ...]:
    return values.split(_CHUNK)


def shortening(wire: WireType) -> float:
    """How many times as long fp32 numbers would take on the link."""
    return torch.float32.itemsize / _TYPES[wire].itemsize


def scales_of(wires: Sequence[Wire]) -> Tensor:
    """The scales of wires, as a checkpoint holds them: a rank with parts of its own has its own."""
    return torch.tensor([wire.scale for wire in wires], dtype=torch.float64)
