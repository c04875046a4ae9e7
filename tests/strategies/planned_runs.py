"""Trainings of a built-in model by a plan, on ranks that stand for nodes of any size."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from syncline.cluster.rank import Rank, current_rank
from syncline.graph.capture import capture_training
from syncline.graph.opgraph import OpGraph
from syncline.planning.plan import Plan
from syncline.strategies.planned import storage
from syncline.strategies.planned.strategy import make_step
from syncline.strategies.protocol import Job, StepOptions, TrainStep
from syncline.training.batches import open_batches
from syncline.workloads.batch import map_tensors
from syncline.workloads.load import LoadedWorkload, load_workload
from syncline.workloads.workload import Batch

BATCH = 8


@dataclass(frozen=True)
class Training:
    """What is trained, apart from how."""

    model: str
    steps: int = 10
    rate: float = 1e-2
    double: bool = False
    optimizer: str = "sgd"
    batch: int = BATCH
    nodes: int = 1
    options: StepOptions = field(default_factory=StepOptions)


@lru_cache(maxsize=2)
def loaded(model: str) -> tuple[LoadedWorkload, nn.Module, list[Batch]]:
    """A workload, its model with fresh weights, and the batches of a few steps."""
    workload = load_workload(model, data="synthetic", seed=3)
    batches = open_batches(workload, BATCH, 3)
    return workload, workload.build_model(), [*map(batches.rows, range(10))]


@lru_cache
def graph_of(model: str) -> OpGraph:
    """The model's training step, such that it can be sent to ranks: capturing takes long."""
    workload, module, batches = loaded(model)
    return replace(capture_training(module.train(), workload.compute_loss, batches[0]), exported=None)


def doubled(graph: OpGraph) -> OpGraph:
    """The graph with its constants in double precision."""
    return replace(graph, constants={name: as_double(value) for name, value in graph.constants.items()})


def as_double(batch: Any) -> Any:
    """The batch with its real numbers in double precision."""
    return map_tensors(batch, lambda one: one.double() if one.is_floating_point() else one)


def rank_on(nodes: int) -> Rank:
    """This rank as one of equal nodes."""
    rank = current_rank()
    return replace(rank, local_world_size=rank.world_size // nodes, local_index=rank.index % nodes)


def make_job(training: Training) -> Job:
    """A job with a model of its own."""
    workload, model, batches = loaded(training.model)
    model = copy.deepcopy(model)
    if training.double:
        model.double()
    if training.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=training.rate, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=training.rate)
    return Job(
        model=model,
        optimizer=optimizer,
        compute_loss=workload.compute_loss,
        rank=rank_on(training.nodes),
        device=torch.device("cpu"),
        options=training.options,
        example=batches[0],
    )


def step_by(plan: Plan, graph: OpGraph, training: Training) -> TrainStep:
    """The step that trains by a plan."""
    graph = doubled(graph) if training.double else graph
    return make_step(make_job(training), graph, plan, bucket_mb=1, optimise=False)


def train(step: TrainStep, training: Training, *, start: int = 0) -> list[float]:
    """The losses of some steps."""
    losses = []
    for number in range(start, start + training.steps):
        batch = loaded(training.model)[2][number % 10]
        given = map_tensors(batch, lambda one: one[step.rows(BATCH)])
        loss = step(as_double(given) if training.double else given)
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses


def whole_state(step: TrainStep, ending: str = "") -> dict[str, Tensor]:
    """Copies of the tensors of a step's state whose names end so, put together."""
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in step.state_dict().items()
        if isinstance(value, Tensor) and name.endswith(ending)
    }


@contextmanager
def sharing_all() -> Iterator[None]:
    """Within, parameters are cut as the plan says, however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "SMALL", 1)
        yield
