"""A copy of a model without weights, to be traced in place of the model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from syncline.errors import CaptureError


def weightless(model: nn.Module, fake: AbstractContextManager[Any]) -> nn.Module:
    """A copy whose parameters and buffers have shapes but no memory; constants keep their values.

    Tensors on the meta device appear where the others are, or on the CPU, so that constants which the forward
    pass makes beside them have values too.
    """
    memo: dict[int, Any] = {}
    device = tracing_device(model)
    with fake:
        for parameter in model.parameters():
            memo[id(parameter)] = nn.Parameter(
                _empty(parameter, device), requires_grad=parameter.requires_grad
            )
        for buffer in model.buffers():
            memo[id(buffer)] = _empty(buffer, device)
        for tensor in _plain_tensors(model):
            memo.setdefault(id(tensor), _empty(tensor, device) if tensor.is_meta else tensor)
    return _copied(model, memo)


def _copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise CaptureError(
            f"The model {type(model).__name__} cannot be copied, which capturing it needs: "
            f"{type(error).__name__}: {error}\nRemove what cannot be copied (locks, files, generators) from "
            "its attributes, or give it a __deepcopy__."
        ) from error


def skeleton(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are on the meta device, to be captured later."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.to("meta")
    return _copied(model, memo)


def tracing_device(model: nn.Module) -> torch.device:
    """The device that the traced model appears to be on."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            return tensor.device
    return torch.device("cpu")


def weightless_inputs(value: Any, device: torch.device, fake: AbstractContextManager[Any]) -> Any:
    """The same inputs without memory; each its own tensor, even where one was given twice."""
    if isinstance(value, torch.Tensor):
        with fake:
            return torch.empty(value.shape, dtype=value.dtype, device=device)
    if isinstance(value, Mapping):
        return {key: weightless_inputs(item, device, fake) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)([weightless_inputs(item, device, fake) for item in value])
    return value


def _empty(tensor: torch.Tensor, others: torch.device) -> torch.Tensor:
    device = others if tensor.is_meta else tensor.device
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _plain_tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    """Tensors that modules hold as plain attributes."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                yield value
