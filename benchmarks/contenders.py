"""Ways to train one model on the same ranks, to be timed against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from syncline.cluster.rank import current_rank
from syncline.graph.opgraph import OpGraph
from syncline.planning.axes import search_axes
from syncline.planning.baselines import data_parallel, tensor_parallel
from syncline.planning.plan import Plan
from syncline.planning.planner import Request, describe, make_plan
from syncline.strategies.planned.finding import live_cluster, on_first_rank, state_factor
from syncline.strategies.planned.strategy import capture_job, make_step
from syncline.strategies.planned.tensor import plan_of
from syncline.strategies.protocol import Job
from syncline.strategies.registry import parse_strategy
from syncline.training.batches import open_batches
from syncline.training.schedule import default_optimizer, make_optimizer
from syncline.workloads.batch import count_rows
from syncline.workloads.example import workload_batch
from syncline.workloads.load import LoadedWorkload, load_workload

BUCKET_MB = 25


@dataclass
class Contender:
    """One way to train, ready for its next step."""

    train: Callable[[int], Tensor]
    predicted_step_s: float | None = None
    steps: int = 0
    loss: Tensor | None = None

    def step(self) -> None:
        """Train on the next batch."""
        self.loss = self.train(self.steps)
        self.steps += 1

    def last_loss(self) -> float:
        """The loss of the last batch, over all ranks."""
        total = self.loss.detach().clone() if self.loss is not None else torch.zeros(())
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()


def make_contender(name: str, model: str, batch: int, device: torch.device, cluster: str | None) -> Contender:
    """A contender by name: `ddp`, `parallelize_module`, a plan that is no strategy, or any strategy."""
    workload = load_workload(model, seed=0)
    if name == "ddp":
        return _bare_ddp(workload, batch, device)
    if name == "parallelize_module":
        return _torch_tensor_parallel(workload, batch, device)
    job = _job(workload, batch, device, cluster)
    if name == "data plan":
        step: Any = _planned(job, lambda graph, axes: data_parallel(graph, axes))
    elif name == "megatron plan":
        step = _planned(job, _megatron)
    elif name == "random search":
        step = _random_search(job)
    else:
        step = parse_strategy(name).setup(job)
    batches = open_batches(workload, batch, 0)
    plan: Plan | None = getattr(step, "plan", None)
    return Contender(
        lambda number: step(batches.rows(number, step.rows(batch))),
        predicted_step_s=plan.prediction.step_s if plan is not None else None,
    )


def _job(workload: LoadedWorkload, batch: int, device: torch.device, cluster: str | None) -> Job:
    model = workload.build_model().to(device)
    return Job(
        model=model,
        optimizer=_optimizer(workload, model),
        compute_loss=workload.compute_loss,
        rank=current_rank(),
        device=device,
        example=workload_batch(workload, batch),
        cluster=cluster,
    )


def _optimizer(workload: LoadedWorkload, model: nn.Module) -> torch.optim.Optimizer:
    settings = dataclasses.replace(default_optimizer(workload.input), lr=1e-5)
    return make_optimizer(workload, settings, model)


def _planned(job: Job, shard: Callable[..., dict[int, tuple[int, ...]]]) -> Any:
    graph = capture_job(job, "planned")
    axes = search_axes(live_cluster(job))
    shardings = shard(graph, axes)
    plan = plan_of(job, graph, axes, shardings)
    return make_step(job, graph, plan, bucket_mb=BUCKET_MB, optimise=False)


def _random_search(job: Job) -> Any:
    """The best plan that a random search with Metropolis acceptance meets."""
    graph = capture_job(job, "planned")
    request = Request(
        model="",
        batch=count_rows(job.example) if job.example is not None else 0,
        state_factor=state_factor(job),
    )

    def decide() -> Plan:
        made = make_plan(graph, live_cluster(job), request)
        candidate = next(one for name, one in made.alternatives if name.startswith("random search"))
        cluster = made.search.tables.axes.cluster
        return describe(
            made.search,
            candidate,
            made.plan.workload,
            cluster,
            made.plan.memory_limit_bytes,
            made.plan.search,
        )

    plan = on_first_rank(job, decide)
    return make_step(job, graph, plan, bucket_mb=BUCKET_MB, optimise=False)


def _megatron(graph: OpGraph, axes: Any) -> dict[int, tuple[int, ...]]:
    """Megatron's splits of the blocks over all axes; embedding and head whole on every rank."""
    everything = tuple(range(len(axes.axes)))
    shardings = tensor_parallel(graph, axes, everything)
    whole = (-1,) * len(everything)
    return {op.id: shardings[op.id] if op.module.startswith("blocks.") else whole for op in graph.ops}


def _bare_ddp(workload: LoadedWorkload, batch: int, device: torch.device) -> Contender:
    model = workload.build_model().to(device)
    replica = DistributedDataParallel(model)
    optimizer = _optimizer(workload, model)
    batches = open_batches(workload, batch, 0)
    share = batch // dist.get_world_size()
    part = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)

    def train(number: int) -> Tensor:
        loss = workload.compute_loss(replica, batches.rows(number, part))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return Contender(train)


def _torch_tensor_parallel(workload: LoadedWorkload, batch: int, device: torch.device) -> Contender:
    """The blocks of a GPT-2 as in torch's tensor-parallel tutorial; embedding and head on every rank."""
    model = workload.build_model().to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    blocks = model.get_submodule("blocks")
    for block in blocks.children():
        parallelize_module(
            block,
            mesh,
            {
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "up": ColwiseParallel(),
                "down": RowwiseParallel(),
            },
        )
    optimizer = _optimizer(workload, model)
    _separate_kinds(optimizer)
    batches = open_batches(workload, batch, 0)

    def train(number: int) -> Tensor:
        loss = workload.compute_loss(model, batches.rows(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return Contender(train)


def _separate_kinds(optimizer: torch.optim.Optimizer) -> None:
    """Plain tensors and DTensors in groups of their own: fused updates cannot mix them."""
    for group in list(optimizer.param_groups):
        cut = [one for one in group["params"] if isinstance(one, DTensor)]
        if cut:
            group["params"] = [one for one in group["params"] if not isinstance(one, DTensor)]
            optimizer.param_groups.append({**group, "params": cut})
