"""`single`: one device trains the whole model. The reference that every exact strategy must equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from syncline.errors import StrategyError
from syncline.strategies.gradient_step import GradientStep, check_even_rows, prepare_model
from syncline.strategies.protocol import Job, TrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """Plain training on one device."""

    name: ClassVar[str] = "single"
    exact: ClassVar[bool] = True
    summary: ClassVar[str] = "one device, no communication: the reference"

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """One rank only."""
        if world_size != 1:
            raise StrategyError(
                f"Strategy 'single' trains on 1 rank, not on {world_size}.\n"
                "Use --ranks 1, or a strategy that shares the work, such as 'data'."
            )
        check_even_rows(self.name, world_size=1, global_batch=global_batch, accumulate=accumulate)

    def setup(self, job: Job) -> TrainStep:
        """The plain step."""
        return GradientStep(job, model=prepare_model(job))
