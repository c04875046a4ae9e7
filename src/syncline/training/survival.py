"""Going on when a node is lost, and taking in one that comes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from syncline.cluster.membership import Membership
from syncline.cluster.process_group import (
    break_off_all,
    leave_group,
    meeting_store,
    open_generation,
    process_group,
)
from syncline.cluster.rank import Rank, launched_by_torchrun
from syncline.errors import StrategyError
from syncline.strategies.protocol import Strategy, survives_node_loss


class Survival:
    """The process group of a run whose nodes may be lost and come back."""

    def __init__(self, rank: Rank, device: torch.device) -> None:
        if rank.nodes * rank.local_world_size != rank.world_size:
            raise StrategyError(
                f"on-node-loss=continue needs nodes of one size, but this one has {rank.local_world_size} of "
                f"{rank.world_size} ranks.\nUse nodes of one size, or on-node-loss=stop."
            )
        self._rank = rank
        self._device = device
        self._store = meeting_store()
        self._membership = Membership(rank, self._store, break_off_all)
        if rank.rejoins:
            self._membership.join()
        open_generation(device, self._store, self._membership.generation, rank)

    @property
    def has_newcomers(self) -> bool:
        """On the first rank: whether nodes ask to join."""
        return self._membership.has_newcomers

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that take part now, by their numbers in the run."""
        return frozenset(self._membership.generation.sizes)

    def miss(self) -> None:
        """Say that a node is missed, so that nobody goes on waiting for it."""
        self._membership.miss()

    def regroup(self) -> None:
        """Leave the group, and open one of all who live now; every rank of theirs must call this."""
        # First of all: whoever still waits for this rank in a collective learns of it by the lost connection.
        if dist.group.WORLD is not None:
            leave_group(dist.group.WORLD)
        self._membership.regroup()
        open_generation(self._device, self._store, self._membership.generation, self._rank)

    def rest(self) -> None:
        """Miss nobody any more: what is left to do, others may have done sooner."""
        self._membership.rest()

    def close(self) -> None:
        """Leave the group for good."""
        self._membership.close()
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def open_group(strategy: Strategy, rank: Rank, device: torch.device) -> Iterator[Survival | None]:
    """The process group of a run; with a way to survive when the strategy has one."""
    if not survives_node_loss(strategy) or not launched_by_torchrun() or dist.is_initialized():
        with process_group(device):
            yield None
        return
    survival = Survival(rank, device)
    try:
        yield survival
    finally:
        survival.close()
