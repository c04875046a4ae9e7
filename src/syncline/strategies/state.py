"""The state of a training as flat names and tensors, the same under every exact strategy.

`model.NAME` is a parameter or buffer, `optimizer.NAME.KEY` one part of the optimizer's state for the
parameter NAME. Sharded tensors are DTensors, so `torch.distributed.checkpoint` reshards them by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

GROUPS_KEY = "optimizer_groups"
AUXILIARY = "auxiliary."
"""Begins the names of what is not part of the model; a training whose checkpoint lacks it starts it anew."""


def collect_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights, buffers and optimizer state; what is tensors there are the live tensors themselves."""
    materialise(optimizer)
    names = _names(model)
    state: dict[str, Any] = {f"model.{name}": tensor for name, tensor in model_tensors(model).items()}
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if value is not None:
                state[f"optimizer.{names[parameter]}.{key}"] = value
    state[GROUPS_KEY] = json.dumps(collect_settings(optimizer))
    return state


def apply_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put a collected state into a model and an optimizer, copying into the tensors that are there."""
    materialise(optimizer)
    names = _names(model)
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            tensor.copy_(state[f"model.{name}"])
        for parameter, entries in optimizer.state.items():
            for key, value in entries.items():
                if value is None:
                    continue
                loaded = state[f"optimizer.{names[parameter]}.{key}"]
                if isinstance(value, Tensor):
                    value.copy_(loaded)
                else:
                    entries[key] = loaded
    apply_settings(optimizer, json.loads(state[GROUPS_KEY]))


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied parameter stands once, under its first name."""
    first = dict(model.named_parameters())
    saved = model.state_dict(keep_vars=True)
    parameters = {id(parameter) for parameter in first.values()}
    buffers = {name: tensor for name, tensor in saved.items() if id(tensor) not in parameters}
    return {name: tensor.detach() for name, tensor in (first | buffers).items()}


def collect_settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Learning rate and the like of each parameter group."""
    return [_settings(group) for group in optimizer.param_groups]


def apply_settings(optimizer: torch.optim.Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """Take over what `collect_settings` gave."""
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        group.update(
            {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
        )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Learning rate and the like of one parameter group."""
    kept = {key: value for key, value in group.items() if key != "params"}
    return {key: value.item() if isinstance(value, Tensor) else value for key, value in kept.items()}


def _names(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def materialise(optimizer: torch.optim.Optimizer) -> None:
    """Give a fresh optimizer the (zero) state that its first step would create.

    A step with zero gradients at learning rate 0 changes no weight; zeroing what it left gives the state
    before any step.
    """
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient
    for entries in optimizer.state.values():
        for value in entries.values():
            if isinstance(value, Tensor):
                value.zero_()
