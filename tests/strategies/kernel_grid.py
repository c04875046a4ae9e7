"""Real ranks that split the dims of one op among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import torch.distributed as dist
from torch import Tensor

from syncline.graph.opgraph import Op
from syncline.graph.shards import Part, cut
from syncline.graph.space import Operand
from syncline.strategies.planned.kernels import OpShard

Counts = Mapping[int, int]
"""How many ways each split dim is cut."""


class Grid:
    """Ranks of a group that split dims, the last dim fastest."""

    def __init__(self) -> None:
        world = range(dist.get_world_size())
        sets = [ranks for size in (1, 2, 4) for ranks in combinations(world, size)]
        self._groups: dict[tuple[int, ...], Any] = {ranks: dist.new_group(list(ranks)) for ranks in sets}
        self.rank = dist.get_rank()

    def parts(self, op: Op, counts: Counts) -> dict[int, Part]:
        places = list(product(*[range(count) for count in counts.values()]))
        return {
            dim: Part.of(op.space.sizes[dim], counts[dim], place)
            for dim, place in zip(counts, places[self.rank], strict=True)
        }

    def shard(self, op: Op, counts: Counts) -> OpShard:
        return OpShard(op, self.parts(op, counts), lambda dims: self.group(counts, dims))

    def group(self, counts: Counts, dims: frozenset[int]) -> dist.ProcessGroup:
        places = list(product(*[range(count) for count in counts.values()]))
        fixed = [index for index, dim in enumerate(counts) if dim not in dims]
        own = places[self.rank]
        ranks = [rank for rank, place in enumerate(places) if all(place[i] == own[i] for i in fixed)]
        return self._groups[tuple(ranks)]


def own_pieces(
    tensors: Sequence[Tensor], operands: Sequence[Operand], op: Op, parts: Mapping[int, Part]
) -> list[Tensor]:
    """What a rank has of full tensors; wants gradients where they do."""
    return [
        cut(one, operand, op.space.sizes, parts).detach().clone().requires_grad_(one.requires_grad)
        for one, operand in zip(tensors, operands, strict=True)
    ]
