"""How ranks form pipelines: which stages a rank has, who comes before and after it, who replicates it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from syncline.cluster.rank import Rank
from syncline.errors import StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One rank's place: `depth` ranks in a row form a pipeline, the others replicate it.

    Ranks of one stage are neighbours, so that gradients are averaged inside a node where that is possible
    and the smaller activations go between nodes.
    """

    depth: int
    """Ranks in a pipeline."""
    replicas: int
    place: int
    """This rank's place in its pipeline."""
    replica: int
    pipeline: dist.ProcessGroup
    """The ranks of this pipeline, in the order of their stages."""
    peers: dist.ProcessGroup
    """The ranks that replicate this one."""

    @property
    def is_last(self) -> bool:
        """Whether this rank has the loss."""
        return self.place == self.depth - 1

    def rank_at(self, place: int) -> int:
        """The rank at another place of this pipeline."""
        return dist.get_global_rank(self.pipeline, place)

    def rows(self, global_batch: int) -> slice:
        """The rows of this rank's replica: all ranks of a pipeline have the same."""
        share = global_batch // self.replicas
        return slice(self.replica * share, (self.replica + 1) * share)


def make_layout(rank: Rank, device: torch.device, depth: int) -> Layout:
    """The places of all ranks; every rank must call this."""
    replicas = rank.world_size // depth
    mesh = init_device_mesh(device.type, (depth, replicas), mesh_dim_names=("pp", "dp_replicate"))
    return Layout(
        depth=depth,
        replicas=replicas,
        place=rank.index // replicas,
        replica=rank.index % replicas,
        pipeline=mesh.get_group("pp"),
        peers=mesh.get_group("dp_replicate"),
    )


def check_depth(name: str, world_size: int, stages: int | None) -> int:
    """How many ranks make a pipeline; refuses a number that does not divide the ranks."""
    depth = world_size if stages is None else stages
    if depth < 1 or world_size % depth:
        fitting = ", ".join(str(size) for size in range(1, world_size + 1) if world_size % size == 0)
        raise StrategyError(
            f"{name}: stages={depth} does not divide the {world_size} ranks: each stage is replicated on as "
            f"many ranks.\nUse one of {fitting}."
        )
    return depth


class SharedParameters:
    """Parameters that several places of a pipeline use, such as a tied embedding, and who shares them."""

    def __init__(self, layout: Layout, holders: Mapping[str, Sequence[int]]) -> None:
        """Opens groups: every rank must call this, with the same holders by place."""
        self.groups: dict[str, dist.ProcessGroup] = {}
        """By parameter, those of this pipeline that hold it besides this rank, and this rank."""
        self._first: dict[str, int] = {name: min(places) for name, places in holders.items()}
        self._place = layout.place
        opened: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for places in sorted({tuple(sorted(set(one))) for one in holders.values() if len(set(one)) > 1}):
            opened[places] = _open(layout, places)
        for name, places in holders.items():
            group = opened.get(tuple(sorted(set(places))))
            if group is not None and layout.place in places:
                self.groups[name] = group

    def counts_here(self, name: str) -> bool:
        """Whether this is the first of the places that hold a parameter: sums over all count it here."""
        return self._first.get(name, self._place) == self._place


def _open(layout: Layout, places: Iterable[int]) -> dist.ProcessGroup | None:
    """One group in each replica of the pipeline; that of this rank, if it is in one."""
    own = None
    for replica in range(layout.replicas):
        # Ranks of one place are neighbours, see Layout.
        ranks = [place * layout.replicas + replica for place in places]
        group = dist.new_group(ranks)
        if isinstance(group, dist.ProcessGroup) and replica == layout.replica and layout.place in places:
            own = group
    return own
