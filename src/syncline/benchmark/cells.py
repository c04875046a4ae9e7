"""The cells of a suite, in the order in which they are run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from syncline.benchmark.suite import LOCAL, Suite
from syncline.strategies.registry import parse_strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training."""

    model: str
    strategy: str
    world_size: int
    cluster: str
    batch: int
    """Global."""
    seed: int

    @property
    def name(self) -> str:
        """Unlike that of any other cell of a suite, and fit for a folder."""
        parts = (self.model, self.strategy, f"x{self.world_size}", self.cluster, f"b{self.batch}")
        return re.sub(r"[^\w.+-]+", "-", "_".join((*parts, f"seed{self.seed}")))


def list_cells(suite: Suite) -> list[Cell]:
    """All cells, seed by seed.

    Strategies take turns within a seed, so that a machine that gets slower slows them all alike, and each
    seed begins with another one, so that none is always the first.
    """
    rounds = []
    for place, seed in enumerate(suite.seeds):
        cells = list(dict.fromkeys(_cells_of(suite, seed)))
        start = place * len(cells) // len(suite.seeds)
        rounds += cells[start:] + cells[:start]
    return rounds


def _cells_of(suite: Suite, seed: int) -> list[Cell]:
    return [
        _cell(suite, model, strategy, world_size, cluster, seed)
        for model in suite.models
        for cluster in suite.clusters
        for world_size in suite.world_sizes_on(cluster)
        for strategy in suite.strategies
    ]


def _cell(suite: Suite, model: str, strategy: str, world_size: int, cluster: str, seed: int) -> Cell:
    if parse_strategy(strategy).name == "single":
        # The reference has one rank and no links, whatever it is compared with.
        world_size, cluster = 1, LOCAL
    batch = suite.batch * (world_size if suite.scaling == "weak" else 1)
    return Cell(
        model=model, strategy=strategy, world_size=world_size, cluster=cluster, batch=batch, seed=seed
    )
