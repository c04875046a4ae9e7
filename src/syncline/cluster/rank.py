"""Who this process is among the ranks: the torchrun variables, read here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of a run."""

    index: int = 0
    world_size: int = 1
    local_index: int = 0
    local_world_size: int = 1
    restarts: int = 0
    rejoins: bool = False
    """Whether this rank was started again by itself: the others go on, where the strategy lets them."""

    @property
    def node(self) -> int:
        """The node this rank is on, counted from 0, when all nodes have equally many ranks."""
        return self.index // self.local_world_size

    @property
    def nodes(self) -> int:
        """How many nodes take part, when all have equally many ranks."""
        return max(1, self.world_size // self.local_world_size)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that talks to the user and writes the run's files."""
        return self.index == 0


def launched_by_torchrun(environment: Mapping[str, str] | None = None) -> bool:
    """Whether torchrun (or any launcher with its variables) started this process."""
    variables = os.environ if environment is None else environment
    return all(name in variables for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def current_rank(environment: Mapping[str, str] | None = None) -> Rank:
    """This process's place; a process that no launcher started is the only rank."""
    variables = os.environ if environment is None else environment
    if not launched_by_torchrun(variables):
        return Rank()
    world_size = int(variables["WORLD_SIZE"])
    restarts = int(variables.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return Rank(
        index=int(variables["RANK"]),
        world_size=world_size,
        local_index=int(variables.get("LOCAL_RANK", "0")),
        local_world_size=int(variables.get("LOCAL_WORLD_SIZE", str(world_size))),
        restarts=restarts,
        # With a store of its own torchrun starts all ranks again at once.
        rejoins=restarts > 0 and variables.get("TORCHELASTIC_USE_AGENT_STORE") == "False",
    )
