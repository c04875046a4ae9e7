"""Builds a model without its large weights: they stay on the meta device, and can be made part by part."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from syncline.errors import SynclineError
from syncline.workloads.deferred.recording import Recorder
from syncline.workloads.deferred.tensors import DeferredTensor
from syncline.workloads.deferred.weights import DeferredWeight
from syncline.workloads.randomness import seeded

LARGE = 1 << 20
"""Weights of at least so many elements are deferred."""

_LOG = logging.getLogger(__name__)

Made = TypeVar("Made")


@dataclass(frozen=True)
class Built(Generic[Made]):
    """What was built, and the weights of its model that are still to be made."""

    made: Made
    weights: Mapping[str, DeferredWeight] = field(default_factory=dict)
    """By parameter name; in the model they are on the meta device."""


class _CannotDeferError(Exception):
    """Why a model has to be built in the ordinary way."""


def build_deferred(
    make: Callable[[], Made], model_of: Callable[[Made], nn.Module], *, seed: int, large: int = LARGE
) -> Built[Made]:
    """Build from a seed as `make` does, with the same numbers in every weight, but without the large ones.

    A large weight whose initialisation is more than elementwise is made whole. Where building goes wrong with
    deferred weights, it is done again without them; both are said in the log.

    Args:
        make: Builds on the CPU.
        model_of: The model in what was made.
        seed: Of the random numbers.
        large: Weights of at least so many elements are deferred.
    """
    recorder = Recorder(large)
    try:
        with seeded(seed), recorder:
            made = make()
        built = Built(made, _take_out(model_of(made), recorder))
    except SynclineError:
        raise
    except Exception as error:
        _LOG.warning(
            "Every rank builds all weights: the model cannot be built without its large ones (%s: %s).",
            type(error).__name__,
            error,
        )
    else:
        return built
    with seeded(seed):
        return Built(make())


def move_real_tensors(model: nn.Module, device: torch.device) -> None:
    """Bring all but the deferred weights to a device."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def _take_out(model: nn.Module, recorder: Recorder) -> dict[str, DeferredWeight]:
    """Put plain tensors in the place of deferred ones, which nobody must hold afterwards."""
    weights: dict[str, DeferredWeight] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    plain: dict[int, nn.Parameter] = {}
    memories: set[int] = set()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not isinstance(parameter, DeferredTensor):
                continue
            if id(parameter) not in plain:
                if id(parameter.memory) in memories:
                    raise _CannotDeferError(f"{names[id(parameter)]} shares memory with another parameter")
                memories.add(id(parameter.memory))
                plain[id(parameter)] = _plain(parameter, names[id(parameter)], weights)
            setattr(module, name, plain[id(parameter)])
        _realise_others(module)
    del parameter
    gc.collect()
    if left := recorder.alive():
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in left)
        raise _CannotDeferError(f"large tensors of shape {shapes} are held outside of its parameters")
    return weights


def _plain(parameter: DeferredTensor, name: str, weights: dict[str, DeferredWeight]) -> nn.Parameter:
    data: Tensor
    if parameter.memory.real is None and parameter.is_whole:
        weights[name] = DeferredWeight(parameter.shape, parameter.dtype, parameter.recipe)
        data = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    else:
        _LOG.warning("Every rank builds all of %s: its initial values are not elementwise.", name)
        data = parameter.realised()
    made = nn.Parameter(data, requires_grad=parameter.requires_grad)
    vars(made).update({key: value for key, value in parameter.marks().items() if key != "_is_param"})
    return made


def _realise_others(module: nn.Module) -> None:
    for name, buffer in list(module.named_buffers(recurse=False)):
        if isinstance(buffer, DeferredTensor):
            setattr(module, name, buffer.realised())
    for name, value in list(vars(module).items()):
        if isinstance(value, DeferredTensor):
            setattr(module, name, value.realised())
