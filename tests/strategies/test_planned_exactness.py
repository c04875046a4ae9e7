"""Any legal plan is exact: losses and gradients as on one device, whatever is split over what."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from strategies.random_plans import random_plan
from syncline.cluster.rank import current_rank
from syncline.strategies.planned.strategy import capture_job, make_step
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.registry import parse_strategy
from syncline.training.batches import open_batches
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

BATCH = 8
STEPS = 10


@dataclass(frozen=True)
class Case:
    model: str
    nodes: int
    per_node: int
    seeds: tuple[int, ...]
    batch: int = BATCH
    steps: int = STEPS
    rate: float = 1e-5


def make_job(case: Case) -> tuple[Job, object]:
    workload = load_workload(case.model, seed=3)
    model = workload.build_model()
    job = Job(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=case.rate, momentum=0.9),
        compute_loss=workload.compute_loss,
        rank=current_rank(),
        device=torch.device("cpu"),
        example=workload_batch(workload, case.batch),
    )
    return job, open_batches(workload, case.batch, 3)


def course(step: TrainStep, batches, case: Case) -> tuple[list[float], dict[str, Tensor]]:
    losses = []
    for number in range(case.steps):
        loss = step(batches.rows(number, step.rows(case.batch)))
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    momenta = {
        name.removeprefix("optimizer."): value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in step.state_dict().items()
        if name.endswith("momentum_buffer")
    }
    return losses, {name: value.clone() for name, value in momenta.items()}


def train_single(case: Case):
    job, batches = make_job(case)
    return course(parse_strategy("single").setup(job), batches, case)


def train_planned(case: Case):
    found = []
    for seed in case.seeds:
        job, batches = make_job(case)
        graph = capture_job(job, "planned")
        plan = random_plan(graph, nodes=case.nodes, per_node=case.per_node, seed=seed)
        found.append(course(make_step(job, graph, plan, bucket_mb=1, optimise=False), batches, case))
    return found


def worst(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[float, str]:
    assert given.keys() == wanted.keys()
    errors = [
        ((given[name] - wanted[name]).norm().item() / max(wanted[name].norm().item(), 1e-8), name)
        for name in wanted
    ]
    return max(errors)
