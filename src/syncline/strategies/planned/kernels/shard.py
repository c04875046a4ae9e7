"""One rank's share of an op: which parts of its dims it has, and the ranks that have the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from syncline.graph.opgraph import Op, TensorRef
from syncline.graph.shards import Part, local_sizes
from syncline.graph.space import DimKind

Kernel = Callable[..., tuple[torch.Tensor, ...]]
"""Takes this rank's pieces of the op's inputs, in their order, and gives its pieces of the outputs."""


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """What a kernel can begin before its op's turn: an exchange about inputs that are known sooner."""

    places: tuple[int, ...]
    """Which of the op's inputs it takes."""
    start: Callable[..., Any]
    """Begins; the kernel takes what it gives as one more input."""


@dataclass(frozen=True, slots=True)
class OpShard:
    """An op, and the share of it that this rank computes."""

    op: Op
    """At its full size."""
    parts: Mapping[int, Part]
    """For each split dim, this rank's part of it."""
    groups: Callable[[frozenset[int]], dist.ProcessGroup]
    """The ranks among which exactly these split dims are cut, this one included, in the parts' order."""

    def group(self, kind: DimKind) -> dist.ProcessGroup | None:
        """The ranks among which the dims of a kind are cut; None if none of them is split."""
        split = frozenset(dim for dim in self.parts if self.op.space.dims[dim].kind is kind)
        return self.groups(split) if split else None

    def part(self, name: str) -> Part:
        """This rank's part of a dim, the whole of it if it is not split; dims of size 1 may be unknown."""
        for index, dim in enumerate(self.op.space.dims):
            if dim.name == name:
                return self.parts.get(index, Part(0, dim.size))
        return Part(0, 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each dim on this rank."""
        return local_sizes(self.op.space.sizes, self.parts)

    def fill(self, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The op's arguments by name, with these tensors for its inputs."""
        given = iter(inputs)
        return {name: _filled(value, given) for name, value in self.op.arguments.items()}


def _filled(value: Any, given: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, TensorRef):
        return next(given)
    return [_filled(item, given) for item in value] if isinstance(value, tuple) else value
