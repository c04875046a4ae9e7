"""Which modules are the same but for their weights: those can only do the same when called alike."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_WEIGHTS = ("_parameters", "_buffers", "_modules")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum)


def families(root: nn.Module) -> Iterator[list[nn.Module]]:
    """Groups of three or more children of one module that are interchangeable, and not leaves."""
    for parent in root.modules():
        alike: dict[Any, list[nn.Module]] = {}
        for child in parent.children():
            if any(True for _ in child.children()):
                alike.setdefault(description(child), []).append(child)
        yield from (group for group in alike.values() if len(group) > 2)


def description(module: nn.Module) -> Any:
    """All that a module's forward pass can depend on, except the values of its weights.

    Settings count by value, other objects by identity. Weights count by shape, and by which of them are
    one and the same.
    """
    return _describe(module, {})


def _describe(module: nn.Module, seen: dict[int, int]) -> Any:
    settings = tuple((name, _setting(value)) for name, value in vars(module).items() if name not in _WEIGHTS)
    weights = tuple(
        (name, None if tensor is None else (_form(tensor), seen.setdefault(id(tensor), len(seen))))
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
    )
    children = tuple(
        (name, None if child is None else _describe(child, seen)) for name, child in module._modules.items()
    )
    return type(module), settings, weights, children


def _form(tensor: torch.Tensor) -> Any:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _setting(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_setting, value))
    if isinstance(value, dict):
        return type(value), tuple((_setting(key), _setting(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_setting, value))
    return type(value), id(value)
