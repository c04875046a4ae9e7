"""Captures a model: `torch.export` on tensors without memory, then the graph of what it did.

No weight is allocated, no process group is needed, and the user's model is not touched. The model is
captured in the mode that it is in: dropout and batch norm behave as in training when it is in training mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from syncline._torch_compat import fake_mode, graphs_without_code
from syncline.graph.failures import explain, explained
from syncline.graph.opgraph import OpGraph
from syncline.graph.origin import Wrapping
from syncline.graph.reading import read
from syncline.graph.repeats import repeats_copied
from syncline.graph.twin import tracing_device, weightless, weightless_inputs

_INSIDE = Wrapping("model", "loss")
"""The model is the attribute `model` of a module that computes the loss."""


def capture(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None = None,
) -> OpGraph:
    """The graph of a model's forward pass, and of its loss if one is given.

    Args:
        model: On any device, also meta. It is not changed.
        example_inputs: What the model is called with; only shapes and types matter. With a loss, the last
            one is the targets.
        loss: Takes the model's output and the targets.

    Raises:
        CaptureError: The model cannot be exported; names the line of its code.
    """
    if loss is None:
        return _capture(model, lambda twin: twin, example_inputs, Wrapping())
    return _capture(model, lambda twin: _Loss(twin, loss), example_inputs, _INSIDE)


def capture_training(
    model: nn.Module, compute_loss: Callable[[nn.Module, Any], torch.Tensor], example_batch: Any
) -> OpGraph:
    """The graph of a training step's forward pass, from the batch to the scalar loss.

    Args:
        model: On any device, also meta. It is not changed.
        compute_loss: Calls the model on a batch and gives its loss.
        example_batch: Tensors in tuples or mappings; only shapes and types matter.

    Raises:
        CaptureError: The model or its loss cannot be exported; names the line of its code.
    """
    return _capture(model, lambda twin: _Step(twin, compute_loss), (example_batch,), _INSIDE)


class _Loss(nn.Module):
    """A model followed by a loss of its output and the last input."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self.training = model.training

    def forward(self, *inputs: Any) -> torch.Tensor:
        return self._loss(self.model(*inputs[:-1]), inputs[-1])


class _Step(nn.Module):
    """A model and how its loss is computed from a batch."""

    def __init__(self, model: nn.Module, compute_loss: Callable[[nn.Module, Any], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._compute_loss = compute_loss
        self.training = model.training

    def forward(self, batch: Any) -> torch.Tensor:
        return self._compute_loss(self.model, batch)


def _capture(
    model: nn.Module,
    wrap: Callable[[nn.Module], nn.Module],
    inputs: tuple[Any, ...],
    wrapping: Wrapping,
) -> OpGraph:
    fake = fake_mode()
    twin = wrap(weightless(model, fake))
    exported = _export(twin, weightless_inputs(inputs, tracing_device(model), fake), type(model).__name__)
    return read(exported, twin, wrapping)


def _export(module: nn.Module, inputs: tuple[Any, ...], name: str) -> ExportedProgram:
    try:
        with (
            warnings.catch_warnings(),
            torch.enable_grad(),
            graphs_without_code(),
            repeats_copied(module),
            explained(module, name),
        ):
            warnings.simplefilter("ignore")
            return torch.export.export(module, inputs, strict=False)
    except Exception as error:
        raise explain(error, name) from error
