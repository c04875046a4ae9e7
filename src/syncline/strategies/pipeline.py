"""`pipeline`: each rank has a stage of the layers, micro-batches flow through them (torch pipelining)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from syncline.errors import StrategyError
from syncline.strategies.gradient_step import check_even_rows
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.stages.layout import check_depth, make_layout
from syncline.strategies.stages.pipeline_step import PipelineStep, schedule_class
from syncline.strategies.stages.placing import BalanceBy, place_cuts, split_names

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Stages of layers on ranks in a row; gradients flow back through all of them."""

    name: ClassVar[str] = "pipeline"
    exact: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "stages of layers on ranks in a row, micro-batches flow through (1F1B, zero bubble)"
    )

    schedule: Schedule = "1f1b"
    """In which order a rank runs forward and backward of its micro-batches."""
    microbatches: int | None = None
    """Into how many parts a replica's batch is cut (default: as many as there are ranks in a pipeline)."""
    stages: int | None = None
    """Ranks in a pipeline; the remaining ranks replicate it (default: all ranks are one pipeline)."""
    per_rank: int | None = None
    """Stages on each rank (default: 2 when interleaved, else 1)."""
    cuts: str | None = None
    """Modules after which to cut, joined by +, such as blocks.3+blocks.7 (default: balanced)."""
    balance: BalanceBy = "estimated"
    """Whether stages are balanced by the estimated or by the measured time of their ops."""

    def __post_init__(self) -> None:
        if self.microbatches is not None and self.microbatches < 1:
            raise StrategyError(f"pipeline: microbatches is {self.microbatches}; it must be at least 1.")
        if self.per_rank is not None and (self.per_rank < 1 or self.schedule in ("gpipe", "1f1b")):
            raise StrategyError(
                f"pipeline: per-rank={self.per_rank} does not go with schedule={self.schedule}: several "
                "stages on a rank need the schedule interleaved or zero-bubble, and at least 1."
            )

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Stages must divide the ranks, and micro-batches must be equal."""
        depth = check_depth(self.name, world_size, self.stages)
        if depth == 1:
            raise StrategyError(
                "Strategy 'pipeline' needs at least 2 ranks in a row.\n"
                "Use more --ranks, or 'single' or 'data'."
            )
        parts = self.microbatches or depth
        check_even_rows(
            self.name,
            world_size=world_size // depth,
            global_batch=global_batch,
            accumulate=accumulate * parts,
        )
        if self.schedule == "1f1b" and parts < depth:
            raise StrategyError(
                f"pipeline: the schedule 1f1b keeps {depth} stages busy with as many micro-batches, but "
                f"microbatches={parts}.\nUse microbatches={depth} or more, or schedule=gpipe."
            )
        rounds = max(1, parts // depth)
        if self.schedule in ("interleaved", "zero-bubble") and parts % rounds:
            raise StrategyError(
                f"pipeline: the schedule {self.schedule} runs {parts} micro-batches in {rounds} rounds over "
                f"{depth} ranks, which are not equal.\nUse microbatches={depth} or {2 * depth}."
            )
        if self.cuts is not None:
            stages = len(split_names(self.cuts)) + 1
            if stages != depth * self._per_rank:
                raise StrategyError(
                    f"pipeline: {stages - 1} cuts make {stages} stages, but {depth} ranks with "
                    f"{self._per_rank} each need {depth * self._per_rank}.\nName one cut less than stages."
                )

    def setup(self, job: Job) -> TrainStep:
        """Cut the graph, keep this rank's stages, and make torch's schedule of them."""
        depth = check_depth(self.name, job.rank.world_size, self.stages)
        layout = make_layout(job.rank, job.device, depth)
        parts = self.microbatches or depth
        placed = place_cuts(
            job,
            self.name,
            stages=depth * self._per_rank,
            rows_shared_by=layout.replicas * job.options.accumulate * parts,
            cuts=self.cuts,
            by=self.balance,
        )
        return PipelineStep(job, placed, layout, schedule=schedule_class(self.schedule), microbatches=parts)

    @property
    def _per_rank(self) -> int:
        return self.per_rank or (2 if self.schedule == "interleaved" else 1)
