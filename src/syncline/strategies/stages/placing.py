"""Deciding where a job's model is cut: as the user says, or balanced; the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch.distributed as dist

from syncline.cluster.presets import cluster_from
from syncline.errors import SynclineError
from syncline.graph.cutting import CutPoint, Cutting
from syncline.planning.stages import balance, candidates, named_points, segment_times
from syncline.strategies.protocol import Job
from syncline.strategies.stages.blueprint import Blueprint
from syncline.strategies.stages.holding import model_state
from syncline.strategies.stages.timing import measure_segments
from syncline.workloads.batch import count_rows

BalanceBy: TypeAlias = Literal["estimated", "measured"]
ExtraTime: TypeAlias = Callable[[Blueprint, int, CutPoint], float]
"""Seconds that a stage of so many rows which ends at a point takes besides its ops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a model is cut, and what its stages are made from."""

    blueprint: Blueprint
    cuts: tuple[str, ...]
    rows: int
    """Of one micro-batch."""
    global_batch: int


def split_names(cuts: str) -> list[str]:
    """The names in a list like `blocks.3+blocks.7`."""
    return [name.strip() for name in cuts.split("+")]


def place_cuts(
    job: Job,
    name: str,
    *,
    stages: int,
    rows_shared_by: int,
    cuts: str | None,
    by: BalanceBy,
    extra_s: ExtraTime = lambda blueprint, rows, point: 0.0,
    pick: Callable[[Cutting], Sequence[CutPoint]] | None = None,
) -> Placed:
    """Cut a job's model; every rank must call this, for the first one decides.

    Args:
        job: What is trained.
        name: The strategy.
        stages: How many.
        rows_shared_by: Into how many equal parts the global batch is cut for a stage.
        cuts: The user's own choice.
        by: How balanced.
        extra_s: What a stage that ends at a point takes besides its ops.
        pick: Chooses the cuts in place of balancing, when the user names none.

    Raises:
        StrategyError: It cannot be cut so; says where and why.
    """
    blueprint = Blueprint(job, name)
    micro_batch = count_rows(job.example) if job.example is not None else 0
    global_batch = micro_batch * job.options.accumulate
    rows = max(1, global_batch // rows_shared_by)
    told: list[tuple[str, ...] | SynclineError] = [()]
    if job.rank.is_first:
        try:
            told[0] = (
                _names(pick(blueprint.cutting(rows, training=True)))
                if pick is not None and cuts is None
                else _choose(job, blueprint, stages, rows, cuts, by, extra_s)
            )
        except SynclineError as error:
            told[0] = error
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(told, device=job.device)
    if isinstance(told[0], SynclineError):
        raise told[0]
    return Placed(blueprint=blueprint, cuts=told[0], rows=rows, global_batch=global_batch)


def _choose(
    job: Job,
    blueprint: Blueprint,
    stages: int,
    rows: int,
    cuts: str | None,
    by: BalanceBy,
    extra_s: ExtraTime,
) -> tuple[str, ...]:
    cutting = blueprint.cutting(rows, training=True)
    if cuts is not None:
        return _names(named_points(cutting, split_names(cuts)))
    points = candidates(cutting)
    if by == "measured":
        times = measure_segments(cutting, points, model_state(job.model), job.device)
    else:
        times = segment_times(cutting, points, cluster_from("local").device)
    found = balance(cutting, stages, times, lambda point: extra_s(blueprint, rows, point))
    return _names(found.points)


def _names(points: Sequence[CutPoint]) -> tuple[str, ...]:
    return tuple(point.name for point in points)
