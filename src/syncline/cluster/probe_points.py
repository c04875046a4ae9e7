"""What a probe times: matrix products, a memory stream, and every collective at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from syncline.cluster.collectives import Collective
from syncline.cluster.timing import Point

PROBED: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGroup:
    """This rank's group on one level."""

    level: str
    ranks: tuple[int, ...]
    handle: dist.ProcessGroup


def matmul_point(size: int, dtype: torch.dtype, device: torch.device) -> Point:
    """A product of square matrices: 2·size³ FLOP."""

    def build() -> Callable[[], object]:
        left, right, out = (torch.rand(size, size, device=device).to(dtype) for _ in range(3))
        return lambda: torch.mm(left, right, out=out)

    return Point(
        label=f"matrix products, {str(dtype).removeprefix('torch.')} {size}", build=build, sustained=True
    )


def interrupted_point(size: int, device: torch.device) -> Point:
    """A product of square matrices, and a collective of all ranks that sends next to nothing."""

    def build() -> Callable[[], object]:
        left, right, out = (torch.rand(size, size, device=device) for _ in range(3))
        small = torch.zeros(16, device=device)

        def work() -> None:
            torch.mm(left, right, out=out)
            dist.all_reduce(small)

        return work

    return Point(label="ranks that wait for each other", build=build, sustained=True)


def stream_point(nbytes: int, device: torch.device) -> Point:
    """The triad a = b + s·c of the STREAM benchmark: two reads and a write of so many bytes each."""

    def build() -> Callable[[], object]:
        first, second, out = (torch.rand(nbytes // 4, device=device) for _ in range(3))
        return lambda: torch.add(first, second, alpha=3.0, out=out)

    return Point(label="memory", build=build, sustained=True)


def collective_point(kind: Collective, nbytes: int, group: LinkGroup, device: torch.device) -> Point:
    """One collective in this rank's group; its largest buffer has `nbytes`, a multiple of 4·members."""

    def build() -> Callable[[], object]:
        # Zeros stay zeros, however often they are summed.
        full, other = (torch.zeros(nbytes // 4, device=device) for _ in range(2))
        part = torch.zeros(full.numel() // len(group.ranks), device=device)
        works: dict[Collective, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(full, group=group.handle),
            "all_gather": lambda: dist.all_gather_single(full, part, group=group.handle),
            "reduce_scatter": lambda: dist.reduce_scatter_single(part, full, group=group.handle),
            "all_to_all": lambda: dist.all_to_all_single(other, full, group=group.handle),
            "send": lambda: _shift(full, other, group),
        }
        return works[kind]

    return Point(label=f"{kind} ({group.level})", build=build)


def _shift(outgoing: torch.Tensor, incoming: torch.Tensor, group: LinkGroup) -> None:
    """Each member sends to the next one, all at once."""
    place = group.ranks.index(dist.get_rank())
    following, preceding = group.ranks[(place + 1) % len(group.ranks)], group.ranks[place - 1]
    transfers = [
        dist.P2POp(dist.isend, outgoing, following, group=group.handle),
        dist.P2POp(dist.irecv, incoming, preceding, group=group.handle),
    ]
    for transfer in dist.batch_isend_irecv(transfers):
        transfer.wait()
