"""Picks a built-in model by name and changes it, in the notation `name:key=value,key=value`."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from syncline.errors import ModelError, unknown_name
from syncline.options import parse_options, show_value
from syncline.workloads.models.catalogue import BUILTIN_MODELS, BuiltinModel
from syncline.workloads.workload import InputSpec

__all__ = ["BUILTIN_MODELS", "BuiltinModel", "ModelSpec", "is_builtin", "parse_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One built-in model with its size and every option decided."""

    model: BuiltinModel
    size: str
    config: Any

    @property
    def name(self) -> str:
        """The model's name in the registry."""
        return self.model.name

    @property
    def input(self) -> InputSpec:
        """What the model takes."""
        return self.model.input(self.config)

    @property
    def default_data(self) -> str:
        """The data set to train on when none is named."""
        return self.model.default_data

    @property
    def text(self) -> str:
        """The shortest text that `parse_model` turns into this."""
        given = [] if self.size == self.model.default_size else [f"size={self.size}"]
        base = self.model.sizes[self.size]
        for field in dataclasses.fields(self.config):
            value = getattr(self.config, field.name)
            if value != getattr(base, field.name):
                given.append(f"{field.name.replace('_', '-')}={show_value(value)}")
        return f"{self.name}:{','.join(given)}" if given else self.name

    def build(self, device: torch.device | str | None = None) -> nn.Module:
        """The model with fresh weights from torch's random state, on this device or the current default.

        On `meta` nothing is allocated, whatever the size.
        """
        with contextlib.nullcontext() if device is None else torch.device(device):
            return self.model.build(self.config)


def is_builtin(text: str) -> bool:
    """Whether the text means a built-in model rather than a user's `module:function`."""
    name, _, rest = text.partition(":")
    model = BUILTIN_MODELS.get(name)
    return model is not None and (not rest or "=" in rest or rest in model.sizes)


def parse_model(text: str) -> ModelSpec:
    """The model that `name` or `name:key=value,key=value` means.

    `size=` picks one of the model's sizes; the other keys change fields of that size's configuration.
    """
    name, _, rest = text.strip().partition(":")
    if name not in BUILTIN_MODELS:
        raise ModelError(unknown_name("built-in model", name, BUILTIN_MODELS))
    model = BUILTIN_MODELS[name]
    size, options = _pick_size(model, rest)
    base = model.sizes[size]
    what = f"model '{name}' of size '{size}'"
    try:
        config = parse_options(type(base), options, what=what, error=ModelError, base=base)
    except ModelError as exc:
        raise ModelError(f"{exc}\nSizes, picked with size=: {', '.join(sorted(model.sizes))}.") from exc
    return ModelSpec(model=model, size=size, config=config)


def _pick_size(model: BuiltinModel, text: str) -> tuple[str, str]:
    """The size that the options ask for, and the options without it."""
    if text in model.sizes:
        raise ModelError(f"'{model.name}:{text}' is not complete. Write '{model.name}:size={text}'.")
    given: list[str] = []
    others: list[str] = []
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key == "size" and equals:
            given.append(value)
        else:
            others.append(part)
    if len(given) > 1:
        raise ModelError(f"The size of model '{model.name}' is given twice. Give it once.")
    size = given[0] if given else model.default_size
    if size not in model.sizes:
        raise ModelError(unknown_name(f"size of model '{model.name}'", size, model.sizes))
    return size, ",".join(others)
