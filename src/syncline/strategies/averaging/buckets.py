"""Many tensors as a few flat ones: what is exchanged travels in buckets, each of one collective."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from syncline.strategies.averaging.rooms import Rooms

BUCKET_BYTES = 25_000_000
"""Of fp32 numbers: large enough for the link's full rate, small enough that the first arrives early."""


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What training changes: frozen parameters are the same everywhere and are not sent."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def float_buffers(model: nn.Module) -> list[Tensor]:
    """Statistics that the model keeps, such as those of batch norms; counters are the same everywhere."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def local_part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, as real numbers; writing to it writes to the tensor."""
    own = tensor.detach()
    if isinstance(own, DTensor):
        own = own.to_local()
    return torch.view_as_real(own) if own.is_complex() else own


@dataclass(frozen=True, slots=True)
class _Span:
    """A run of a tensor's numbers."""

    tensor: Tensor
    start: int
    stop: int

    def read(self) -> Tensor:
        return local_part(self.tensor).float().flatten()[self.start : self.stop]

    def blend(self, keep: float, values: Tensor) -> None:
        own = local_part(self.tensor)
        flat = own.view(-1) if own.is_contiguous() else own.flatten()
        part = flat[self.start : self.stop]
        if keep:
            torch.add(values, part, alpha=keep, out=part)
        else:
            part.copy_(values)
        if not own.is_contiguous():
            own.copy_(flat.view_as(own))


class Buckets:
    """A fixed list of tensors, copied to and from flat fp32 tensors of the same size, about `bucket_bytes`.

    Args:
        tensors: What is copied.
        least: At least so many buckets, where there are as many numbers.
        bucket_bytes: If one would be larger than this, a multiple of that number.
    """

    def __init__(
        self, tensors: Sequence[Tensor], *, least: int = 1, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        sizes = [local_part(tensor).numel() for tensor in tensors]
        count = least * max(1, math.ceil(4 * sum(sizes) / (bucket_bytes * least)))
        self._spans = _cut(tensors, sizes, math.ceil(sum(sizes) / count))

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def sizes(self) -> list[int]:
        """How many numbers each bucket has."""
        return [sum(span.stop - span.start for span in spans) for spans in self._spans]

    def read(self, which: Iterable[int] | None = None, rooms: Rooms | None = None) -> list[Tensor]:
        """The values now of all buckets, or of these, copied; into memory that was used before, if any."""
        numbers = range(len(self)) if which is None else which
        return [_join([span.read() for span in self._spans[number]], rooms) for number in numbers]

    def write(self, flats: Iterable[Tensor], which: Iterable[int] | None = None) -> None:
        """Put values back into the tensors of all buckets, or of these."""
        self.blend(0.0, flats, which)

    def blend(self, keep: float, flats: Iterable[Tensor], which: Iterable[int] | None = None) -> None:
        """Make each number of all buckets, or of these, `keep` times what it is plus what is given for it."""
        numbers = range(len(self)) if which is None else which
        for number, flat in zip(numbers, flats, strict=True):
            spans = self._spans[number]
            sizes = [span.stop - span.start for span in spans]
            for span, values in zip(spans, flat.split(sizes), strict=True):
                span.blend(keep, values)


def _join(parts: list[Tensor], rooms: Rooms | None) -> Tensor:
    if rooms is None:
        return torch.cat(parts)
    room = rooms.take(sum(part.numel() for part in parts), torch.float32, parts[0].device)
    return torch.cat(parts, out=room)


def _cut(tensors: Sequence[Tensor], sizes: Sequence[int], each: int) -> list[list[_Span]]:
    """Buckets of so many numbers, the last one perhaps of fewer."""
    buckets: list[list[_Span]] = []
    room = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        start = 0
        while start < size:
            if not room:
                buckets.append([])
                room = each
            stop = min(size, start + room)
            buckets[-1].append(_Span(tensor, start, stop))
            room -= stop - start
            start = stop
    return buckets
