"""`planned`: every op is split as a plan says, found by search for the model and the ranks at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from syncline.errors import StrategyError
from syncline.graph.capture import capture_training
from syncline.graph.opgraph import OpGraph
from syncline.graph.twin import skeleton
from syncline.planning.plan import Plan
from syncline.strategies.planned.checks import check_live
from syncline.strategies.planned.engine import Engine
from syncline.strategies.planned.finding import find_plan
from syncline.strategies.planned.optimizing import Optimizing
from syncline.strategies.planned.step import PlannedStep
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.rebinding import parameter_names
from syncline.workloads.batch import in_fixed_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The fastest exact way that the planner finds, run on local tensors."""

    name: ClassVar[str] = "planned"
    exact: ClassVar[bool] = True
    defers_weights: ClassVar[bool] = True
    summary: ClassVar[str] = "every operator split as the planner finds fastest, or as a plan.json says"

    compile: bool = False
    """Run each rank's program through torch.compile."""
    bucket_mb: int = 25
    """Gradients are reduced in buckets of about this size."""

    def __post_init__(self) -> None:
        if self.bucket_mb < 1:
            raise StrategyError(f"planned: bucket-mb is {self.bucket_mb}; it must be at least 1 (megabyte).")

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Micro-batches must be equal; what ranks can share is the plan's business."""
        check_micro_batches(self.name, global_batch, accumulate)

    def setup(self, job: Job) -> TrainStep:
        """Capture the model, find the plan unless it is given, and make this rank's program."""
        graph = capture_job(job, self.name)
        plan = job.plan or find_plan(job, graph)
        return make_step(job, graph, plan, bucket_mb=self.bucket_mb, optimise=self.compile)


def capture_job(job: Job, name: str) -> OpGraph:
    """The graph of a job's training step."""
    if job.example is None:
        raise StrategyError(
            f"Strategy '{name}' captures the model, and needs to know what a batch looks like.\n"
            "Give syncline.parallelize an example_batch: a global batch; only its shapes and types matter."
        )
    job.model.train()
    return capture_training(job.model, job.compute_loss, in_fixed_order(job.example))


def make_step(job: Job, graph: OpGraph, plan: Plan, *, bucket_mb: int, optimise: bool) -> PlannedStep:
    """The step that runs a plan."""
    check_live(plan, graph, job)
    names = parameter_names(job.model)
    bare = skeleton(job.model)
    engine = Engine(job, graph, plan, bare, bucket_bytes=bucket_mb << 20, optimise=optimise)
    optimizing = Optimizing(job.optimizer, names, job.model, engine.placed, engine.mesh)
    return PlannedStep(job, plan, engine, optimizing)


def check_micro_batches(name: str, global_batch: int, accumulate: int) -> None:
    """Refuse a global batch that micro-batches cannot share evenly, so that means stay means."""
    if global_batch % accumulate:
        lower, upper = global_batch // accumulate * accumulate, -(-global_batch // accumulate) * accumulate
        fitting = " or ".join(str(size) for size in (lower, upper) if size)
        raise StrategyError(
            f"Strategy '{name}' cannot cut a global batch of {global_batch} into {accumulate} equal "
            f"micro-batches.\nUse --batch {fitting}."
        )
