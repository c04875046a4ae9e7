"""`tensor`: the model split as experts do it, over some of the ranks; the batch over the others."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from syncline.errors import StrategyError
from syncline.graph.opgraph import OpGraph, TensorKind
from syncline.planning.axes import SearchAxes, search_axes
from syncline.planning.baselines import Shardings, expert
from syncline.planning.describing import name_split
from syncline.planning.evaluation import evaluate_plan
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import Axis, OpSharding, Plan, PlannedWorkload, SearchReport
from syncline.planning.prediction import Memory, Prediction, Times
from syncline.strategies.planned.finding import live_cluster, on_first_rank, state_factor
from syncline.strategies.planned.strategy import capture_job, check_micro_batches, make_step
from syncline.strategies.protocol import Job, TrainStep
from syncline.workloads.batch import count_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """Megatron's splits for transformers, "one weird trick" for convolutional networks, a split vocabulary
    for recurrent language models; what is left of the ranks is data parallel."""

    name: ClassVar[str] = "tensor"
    exact: ClassVar[bool] = True
    defers_weights: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "large products split over `degree` ranks as experts do it, the batch over the rest"
    )

    degree: int | None = None
    """Over how many ranks the model is split, neighbours first; by default all of a node's."""

    def __post_init__(self) -> None:
        if self.degree is not None and self.degree < 1:
            raise StrategyError(f"tensor: degree is {self.degree}; it must be at least 1 (rank).")

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """The degree must divide the ranks."""
        check_micro_batches(self.name, global_batch, accumulate)
        if self.degree is not None and world_size % self.degree:
            fitting = [number for number in range(1, world_size + 1) if world_size % number == 0]
            raise StrategyError(
                f"tensor: degree={self.degree} does not divide the {world_size} ranks.\n"
                f"Use one of {', '.join(map(str, fitting))}."
            )

    def setup(self, job: Job) -> TrainStep:
        """Capture the model, split it by rule, and make this rank's program."""
        graph = capture_job(job, self.name)
        plan = on_first_rank(job, lambda: self._plan(job, graph))
        return make_step(job, graph, plan, bucket_mb=25, optimise=False)

    def _plan(self, job: Job, graph: OpGraph) -> Plan:
        axes = search_axes(live_cluster(job))
        degree = self.degree or job.rank.local_world_size
        _, shardings = expert(graph, axes, _model_axes(axes, degree))
        return plan_of(job, graph, axes, shardings)


def plan_of(job: Job, graph: OpGraph, axes: SearchAxes, shardings: Shardings) -> Plan:
    """The plan in which ops are split so, with parameters replicated where they are not cut."""
    rows = {op.name: np.array(shardings[op.id]) for op in graph.ops}
    plan = Plan(
        workload=PlannedWorkload(
            model=type(job.model).__name__,
            batch=count_rows(job.example) if job.example is not None else 0,
            parameters=graph.parameter_count,
            forward_flops=graph.forward_flops,
            optimizer_state_factor=state_factor(job),
        ),
        cluster=axes.cluster.name,
        measured=axes.cluster.measured,
        memory_limit_bytes=axes.cluster.device.memory_bytes,
        axes=tuple(
            Axis(name=axis.name, size=axis.size, level=axes.cluster.levels[axis.level].name)
            for axis in axes.axes
        ),
        ops={op.name: OpSharding(split=name_split(op.space.dims, rows[op.name], axes)) for op in graph.ops},
        tied={
            tensor.name: Keeping.REPLICATED
            for tensor in graph.of_kind(TensorKind.PARAMETER)
            if len(graph.consumers[tensor.id]) > 1
        },
        prediction=Prediction(times=Times(), memory=Memory()),
        search=SearchReport(
            space="1", seconds=0.0, ops=len(graph.ops), choices=len(graph.ops), exposed_share=1.0
        ),
    )
    return dataclasses.replace(plan, prediction=evaluate_plan(plan, graph, axes.cluster).prediction)


def _model_axes(axes: SearchAxes, degree: int) -> list[int]:
    """The innermost axes that make up a degree together."""
    chosen: list[int] = []
    for index in reversed(range(len(axes.axes))):
        if math.prod(axes.sizes[one] for one in chosen) == degree:
            break
        chosen.insert(0, index)
    if math.prod(axes.sizes[one] for one in chosen) != degree:
        fitting = sorted({math.prod(axes.sizes[start:]) for start in range(len(axes.sizes) + 1)})
        raise StrategyError(
            f"tensor: a degree of {degree} cannot be made of neighbouring ranks of the mesh "
            f"{' x '.join(map(str, axes.sizes))}.\nUse one of {', '.join(map(str, fitting))}."
        )
    return chosen
