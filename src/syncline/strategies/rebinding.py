"""Moving an optimizer to other parameters, when a strategy replaces those it was made with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Names by identity of the parameters, to be taken before a strategy replaces them."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def rebind(optimizer: torch.optim.Optimizer, model: nn.Module, names: Mapping[int, str]) -> None:
    """Let a fresh optimizer hold the model's present parameters in place of those that had these names."""
    present = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [present[names[id(old)]] for old in group["params"]]


def constructor_defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The arguments with which another optimizer of the same class does the same."""
    accepted = inspect.signature(type(optimizer)).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}
