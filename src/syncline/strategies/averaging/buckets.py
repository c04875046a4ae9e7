"""Many tensors as a few flat ones: what is exchanged travels in buckets, each of one collective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

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


class Buckets:
    """A fixed list of tensors, copied to and from flat fp32 tensors of about `bucket_bytes`.

    A tensor is never cut: one that is larger than a bucket has a bucket of its own.
    """

    def __init__(self, tensors: Sequence[Tensor], bucket_bytes: int = BUCKET_BYTES) -> None:
        self.parts: list[list[Tensor]] = []
        room = 0
        for tensor in tensors:
            needed = 4 * local_part(tensor).numel()
            if not self.parts or needed > room:
                self.parts.append([])
                room = bucket_bytes
            self.parts[-1].append(tensor)
            room -= needed

    @property
    def numbers(self) -> int:
        """How many numbers there are in all."""
        return sum(local_part(tensor).numel() for tensors in self.parts for tensor in tensors)

    def read(self) -> list[Tensor]:
        """The values now, copied."""
        return [
            torch.cat([local_part(tensor).float().flatten() for tensor in tensors]) for tensors in self.parts
        ]

    def write(self, flats: Iterable[Tensor]) -> None:
        """Put values back into the tensors."""
        for tensors, flat in zip(self.parts, flats, strict=True):
            sizes = [local_part(tensor).numel() for tensor in tensors]
            for tensor, values in zip(tensors, flat.split(sizes), strict=True):
                own = local_part(tensor)
                own.copy_(values.view_as(own))
