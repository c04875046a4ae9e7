"""`syncline.parallelize`: a strategy for a loop that the user has already."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.cluster.device import rank_device
from syncline.cluster.process_group import init_process_group
from syncline.cluster.rank import current_rank
from syncline.errors import PlanningError
from syncline.planning.plan import Plan
from syncline.strategies.protocol import Job, StepOptions, TrainStep
from syncline.strategies.registry import parse_strategy
from syncline.workloads.batch import count_rows, slice_rows
from syncline.workloads.batch_form import read_form
from syncline.workloads.calling import loss_function
from syncline.workloads.workload import Batch, Workload


def parallelize(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Any, Tensor], Tensor] | None = None,
    *,
    strategy: str | Plan = "data",
    example_batch: Batch | None = None,
    accumulate: int = 1,
    precision: Literal["fp32", "bf16"] = "fp32",
    clip_norm: float | None = None,
    activation_checkpointing: bool = False,
    steps: int | None = None,
) -> TrainStep:
    """The step that trains `model` with a strategy; call it with each batch of this rank.

    Under torchrun it joins the other ranks; started alone it is the only one. The first rank's weights
    become everyone's. The returned step is `Stateful`, so `torch.distributed.checkpoint` saves and
    reshards it; learning-rate schedules may act on `optimizer` as ever.

    Args:
        model: Called as `model(inputs)`; a `transformers` model by its own convention.
        optimizer: Made with the model's parameters, before any step.
        loss_fn: Gets the output and the targets; by default cross-entropy.
        strategy: `name` or `name:key=value,...`, or a plan of `syncline.plan`.
        example_batch: One global batch, over all ranks; strategies that capture the model (`planned`,
            `tensor`, `pipeline`, `local`) need it, and only its shapes and types matter. A plan of
            `syncline.plan` knows it.
        accumulate: Micro-batches that each batch is cut into.
        precision: `bf16` runs under autocast.
        clip_norm: Largest total norm of the gradients.
        activation_checkpointing: Recompute each block's activations in backward.
        steps: How many steps the loop will make, for strategies with phases such as `daso`.

    Returns:
        A step: `loss = step((inputs, targets))` trains and gives this rank's mean loss, detached;
        `step.evaluate(batch)` gives a loss without training. `step.rows(global_batch)` says which rows of
        a global batch this rank must be given: where several ranks work on the same rows (`tensor`,
        `planned`, `pipeline`, `local`), they get the same.
    """
    rank = current_rank()
    device = rank_device(rank)
    plan = strategy if isinstance(strategy, Plan) else None
    chosen = parse_strategy("planned" if isinstance(strategy, Plan) else strategy)
    global_batch = rank.world_size * accumulate if example_batch is None else count_rows(example_batch)
    chosen.check(world_size=rank.world_size, global_batch=global_batch, accumulate=accumulate)
    if not dist.is_initialized():
        init_process_group(device)
        atexit.register(_close)
    example = _example(example_batch, plan)
    model.to(device)
    _share_first_weights(model)
    job = Job(
        model=model,
        optimizer=optimizer,
        compute_loss=loss_function(Workload(model=model, loss=loss_fn)),
        rank=rank,
        device=device,
        options=StepOptions(
            accumulate=accumulate,
            precision=precision,
            clip_norm=clip_norm,
            activation_checkpointing=activation_checkpointing,
        ),
        steps=steps,
        example=example and slice_rows(example, slice(count_rows(example) // accumulate)),
        plan=plan,
    )
    return chosen.setup(job)


def _example(given: Batch | None, plan: Plan | None) -> Batch | None:
    """What a global batch looks like: as the user says, or as the plan knows."""
    if given is not None or plan is None or not plan.workload.example:
        return given
    try:
        return read_form(plan.workload.example)
    except ValueError as error:
        raise PlanningError(
            f"The plan's workload.example is not the form of a batch: {error}.\nGive an example_batch."
        ) from None


def _share_first_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)


def _close() -> None:
    if not dist.is_initialized():
        return
    ended_well = getattr(sys, "last_value", None) is None
    if ended_well:
        # Others may be steps behind and still read what this rank has sent; one that fails says so itself.
        with suppress(RuntimeError):
            dist.barrier()
    dist.destroy_process_group()
