"""The strategy `local` and its options."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from syncline.cluster.presets import cluster_from
from syncline.errors import StrategyError
from syncline.graph.cutting import CutPoint
from syncline.strategies.gradient_step import check_even_rows
from syncline.strategies.local.block import Combine, Rule
from syncline.strategies.local.building import BlockPlans
from syncline.strategies.local.choosing import Heads
from syncline.strategies.local.heads import HeadKind
from syncline.strategies.local.setup import Settings, layer_points, make_step
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.stages.blueprint import Blueprint
from syncline.strategies.stages.layout import check_depth, make_layout
from syncline.strategies.stages.placing import BalanceBy, place_cuts, split_names

Variant = Literal["greedy", "chunked", "overlap"]
TRAINED_TO_FORWARD = 3
"""FLOPs of forward and backward of a trained layer, in forward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParallel:
    """Blocks of layers with losses of their own: activations go forward, gradients do not come back.

    With one block it is plain training, and exact; with more it is another learning rule (Laskin et al.,
    "Parallel training of deep networks with local updates", 2020).
    """

    name: ClassVar[str] = "local"
    exact: ClassVar[bool] = False
    summary: ClassVar[str] = "blocks of layers with losses of their own, no backward pass between ranks"

    variant: Variant = "chunked"
    """`chunked`: so many blocks; `greedy`: each layer is one; `overlap`: a loss reaches blocks before it."""
    chunks: int | None = None
    """Blocks of `chunked` and `overlap` (default: one for each rank in a pipeline)."""
    overlap: int | None = None
    """Blocks that a loss reaches, its own included (default: 2 for the variant `overlap`, else 1)."""
    combine: Combine = "sum"
    """How the losses that reach a block are combined."""
    queue: int = 2
    """Micro-batches that a stage may have waiting for it."""
    head: HeadKind | None = None
    """What a block that is not the last predicts with (default: by kind of model)."""
    head_cap: float = 0.5
    """Most FLOPs of a mirrored head, as a share of its block's."""
    refresh: int = 50
    """Steps between refreshes of a readout that is shared with earlier blocks."""
    stages: int | None = None
    """Ranks in a pipeline; the remaining ranks replicate it (default: all ranks are one pipeline)."""
    cuts: str | None = None
    """Modules after which blocks end, joined by +, such as blocks.3+blocks.7 (default: balanced)."""
    balance: BalanceBy = "estimated"
    """Whether blocks are balanced by the estimated or by the measured time of their ops."""

    def __post_init__(self) -> None:
        for what in ("chunks", "overlap", "queue", "refresh"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise StrategyError(f"local: {what} is {value}; it must be at least 1.")
        if self.head_cap < 0:
            raise StrategyError(f"local: head-cap is {self.head_cap}; it must not be negative.")
        if self.variant == "greedy" and (self.chunks is not None or self.cuts is not None):
            raise StrategyError(
                "local: variant=greedy makes a block of each layer, so it takes no chunks and no cuts.\n"
                "Use variant=chunked to choose blocks yourself."
            )
        if self.variant != "overlap" and self.overlap not in (None, 1):
            raise StrategyError(
                f"local: overlap={self.overlap} needs variant=overlap: with variant={self.variant} a loss "
                "reaches its own block only."
            )

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Stages must divide the ranks, and there must be a block for each stage."""
        depth = check_depth(self.name, world_size, self.stages)
        check_even_rows(
            self.name, world_size=world_size // depth, global_batch=global_batch, accumulate=accumulate
        )
        blocks = self._block_count(depth)
        if self.variant != "greedy" and blocks < depth:
            raise StrategyError(
                f"local: {blocks} blocks are too few for {depth} ranks in a pipeline.\n"
                f"Use chunks={depth}, or stages={blocks}: the other ranks then replicate them."
            )

    def setup(self, job: Job) -> TrainStep:
        """Cut the graph into blocks, and keep this rank's."""
        depth = check_depth(self.name, job.rank.world_size, self.stages)
        layout = make_layout(job.rank, job.device, depth)
        greedy = self.variant == "greedy"
        placed = place_cuts(
            job,
            self.name,
            stages=self._block_count(depth),
            rows_shared_by=layout.replicas * job.options.accumulate,
            cuts=self.cuts,
            by=self.balance,
            extra_s=self._head_seconds,
            pick=(lambda cutting: layer_points(cutting, job.model)) if greedy else None,
        )
        if len(placed.cuts) + 1 < depth:
            raise StrategyError(
                f"local: the model has {len(placed.cuts) + 1} layers to make blocks of, too few for {depth} "
                f"ranks in a pipeline.\nUse stages={len(placed.cuts) + 1}."
            )
        heads = self._heads(placed.blueprint, placed.rows)
        plans = BlockPlans(placed.blueprint, placed.cuts, placed.rows, heads)
        rule = Rule(blocks=len(plans.blocks), overlap=self._reach, combine=self.combine)
        settings = Settings(rule=rule, queue=self.queue, refresh=self.refresh)
        return make_step(job, plans, layout, settings, placed.rows)

    @property
    def _reach(self) -> int:
        return self.overlap or (2 if self.variant == "overlap" else 1)

    def _block_count(self, depth: int) -> int:
        return len(split_names(self.cuts)) + 1 if self.cuts is not None else self.chunks or depth

    def _heads(self, blueprint: Blueprint, rows: int) -> Heads:
        training, evaluation = (blueprint.cutting(rows, training=mode) for mode in (True, False))
        return Heads(training, evaluation, kind=self.head, cap=self.head_cap)

    def _head_seconds(self, blueprint: Blueprint, rows: int, point: CutPoint) -> float:
        """What the head of a block that ends at a point takes at least; infinite where it does not fit."""
        try:
            flops = self._heads(blueprint, rows).head_flops(point)
        except StrategyError:
            return math.inf
        return TRAINED_TO_FORWARD * flops / cluster_from("local").device.flops_per_s
