"""Which ranks are one node, who speaks for it in which exchange, and the process groups for that.

Ranks of a node follow each other. In exchange number t, node i is spoken for by its rank t mod (its size), so
that the load moves over devices and network cards. Nodes may have different sizes, one rank included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from syncline.cluster.process_group import leave_group
from syncline.cluster.rank import Rank
from syncline.errors import StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMap:
    """The ranks of each node, in order."""

    ranks: tuple[tuple[int, ...], ...]

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> NodeMap:
        """Nodes of these sizes, with ranks counted through."""
        starts = [sum(sizes[:node]) for node in range(len(sizes))]
        nodes = (range(start, start + size) for start, size in zip(starts, sizes, strict=True))
        return cls(ranks=tuple(map(tuple, nodes)))

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return next(node for node, members in enumerate(self.ranks) if rank in members)

    @property
    def turns(self) -> int:
        """After how many exchanges every rank has spoken for its node."""
        return max(len(members) for members in self.ranks)

    def speakers(self, turn: int) -> tuple[int, ...]:
        """The rank that speaks for each node in an exchange."""
        return tuple(members[turn % len(members)] for members in self.ranks)

    def share(self, node: int) -> float:
        """What a node counts for in a mean over ranks, where 1 is the average node."""
        total = sum(len(members) for members in self.ranks)
        return len(self.ranks[node]) * len(self.ranks) / total

    @property
    def is_even(self) -> bool:
        """Whether all nodes have equally many ranks."""
        return len({len(members) for members in self.ranks}) == 1


def find_nodes(rank: Rank, node_size: int | None) -> NodeMap:
    """The nodes as the ranks' launchers say, or of a given size; every rank must call this."""
    if node_size is not None:
        check_node_size(node_size, rank.world_size)
        return NodeMap.of_sizes([node_size] * (rank.world_size // node_size))
    told: list[tuple[int, int]] = [(0, 0)] * rank.world_size
    dist.all_gather_object(told, (rank.local_index, rank.local_world_size))
    sizes = [size for local_index, size in told if local_index == 0]
    if sum(sizes) != rank.world_size:
        raise StrategyError(
            f"The {rank.world_size} ranks do not form whole nodes: their launchers tell of nodes with "
            f"{', '.join(map(str, sizes))} ranks.\nStart ranks with torchrun, or give node-size."
        )
    return NodeMap.of_sizes(sizes)


def check_node_size(node_size: int, world_size: int) -> None:
    """Refuse nodes that cannot be made of so many ranks."""
    if node_size < 1 or world_size % node_size:
        fitting = [size for size in range(1, world_size + 1) if world_size % size == 0]
        raise StrategyError(
            f"node-size={node_size} does not divide the {world_size} ranks.\n"
            f"Use one of {', '.join(map(str, fitting))}."
        )


class NodeGroups:
    """The process groups of one rank: inside its node, and across nodes for every turn.

    Args:
        rank: This rank.
        nodes: All nodes. Every rank must make its groups at the same time.
    """

    def __init__(self, rank: Rank, nodes: NodeMap) -> None:
        self.nodes = nodes
        self.node = nodes.node_of(rank.index)
        self.members = nodes.ranks[self.node]
        self.inside = _own_group(nodes.ranks, rank.index)
        self._rank = rank.index
        self._across = [_own_group([nodes.speakers(turn)], rank.index) for turn in range(nodes.turns)]

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.nodes.ranks)

    @property
    def size(self) -> int:
        """How many ranks this node has."""
        return len(self.members)

    @property
    def share(self) -> float:
        """What this node counts for in a mean, where 1 is the average node."""
        return self.nodes.share(self.node)

    def close(self) -> None:
        """Let go of the groups, so that their connections close and nobody waits for this rank there.

        Closing a group waits for its collectives to fail, and those between nodes may need a peer to come
        here too. That peer may wait for this rank inside the node: so the inside goes first.
        """
        inside, self.inside = self.inside, None
        if inside is not None:
            leave_group(inside)
        del inside
        while self._across:
            group = self._across.pop(0)
            if group is not None:
                leave_group(group)
            del group

    def across(self, turn: int) -> dist.ProcessGroup | None:
        """The group of those who speak in an exchange; None on a rank that is not among them."""
        return self._across[turn % self.nodes.turns]

    def own_across(self) -> dist.ProcessGroup:
        """The ranks with this rank's place in their nodes, which must be of one size."""
        group = self._across[self.members.index(self._rank)]
        if group is None:
            raise TypeError(f"rank {self._rank} speaks for its node in its own turn")
        return group

    def speaker(self, turn: int) -> int:
        """The rank that speaks for this node in an exchange."""
        return self.members[turn % self.size]


def _own_group(all_members: Sequence[Sequence[int]], rank: int) -> dist.ProcessGroup | None:
    """Make a group for each list of ranks, in one order everywhere; the one that this rank is in."""
    own = None
    for members in all_members:
        group = dist.new_group(list(members))
        if rank in members and isinstance(group, dist.ProcessGroup):
            own = group
    return own
