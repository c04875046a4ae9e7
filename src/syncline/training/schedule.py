"""The optimizer and the learning rate of a run, from its settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from syncline.errors import ModelError
from syncline.training.config import OptimizerConfig, ScheduleConfig
from syncline.workloads.load import LoadedWorkload
from syncline.workloads.optimizers import make_adam
from syncline.workloads.workload import InputSpec, OptimizerFactory


def default_optimizer(input: InputSpec | None) -> OptimizerConfig:
    """What models of this input are usually trained with."""
    if input is not None and input.kind == "image":
        return OptimizerConfig(name="sgd", lr=0.01, weight_decay=1e-4)
    return OptimizerConfig()


def optimizer_factory(config: OptimizerConfig) -> OptimizerFactory:
    """Makes the torch optimizer that the settings name."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        if config.name == "sgd":
            return torch.optim.SGD(
                parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
            )
        return make_adam(
            parameters,
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
            decoupled=config.name == "adamw",
        )

    return make


def make_optimizer(
    workload: LoadedWorkload, config: OptimizerConfig | None, model: nn.Module
) -> torch.optim.Optimizer:
    """The workload's own optimizer, or the one that the settings name, for this model.

    Raises:
        ModelError: There is nothing to train, or the user's own function does not make an optimizer.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(
            f"{workload.name} has no parameter to train: all are frozen, or there are none.\n"
            "Leave requires_grad on for those that training shall change."
        )
    if workload.optimizer is None:
        return optimizer_factory(config or default_optimizer(workload.input))(model.parameters())
    try:
        optimizer = workload.optimizer(model.parameters())
    except Exception as error:
        raise ModelError(
            f"The optimizer of {workload.name} cannot be made: {type(error).__name__}: {error}\n"
            "It is made by calling Workload.optimizer with the model's parameters."
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"The optimizer function of {workload.name} returns a value of type {type(optimizer).__name__}; "
            "it must return a torch.optim.Optimizer."
        )
    return optimizer


def rate_factor(config: ScheduleConfig, steps: int) -> Callable[[int], float]:
    """The learning rate in the step after `done` steps, as a fraction of its peak."""

    def factor(done: int) -> float:
        if done < config.warmup_steps:
            return (done + 1) / config.warmup_steps
        if config.shape == "constant":
            return 1.0
        left = 1.0 - (done - config.warmup_steps) / max(1, steps - config.warmup_steps)
        left = min(1.0, max(0.0, left))
        if config.shape == "cosine":
            left = (1.0 - math.cos(math.pi * left)) / 2.0
        return config.floor + (1.0 - config.floor) * left

    return factor


def make_schedule(
    optimizer: torch.optim.Optimizer, config: ScheduleConfig, *, steps: int, done: int
) -> LambdaLR:
    """A schedule that stands after `done` steps; the rate is a function of the step alone."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return LambdaLR(optimizer, rate_factor(config, steps), last_epoch=done - 1)
