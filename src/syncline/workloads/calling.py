"""Calling a model on a batch and getting its loss, with mistakes explained on the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from syncline.errors import ModelError, SynclineError
from syncline.workloads.pretrained import PretrainedCall, is_pretrained
from syncline.workloads.workload import Batch, Workload

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_TORCH_DISTRIBUTED = Path(torch.__file__).parent / "distributed"
_TARGET_KEYS = ("labels", "targets")


class Convention(Protocol):
    """How some kind of model is called and where its loss comes from."""

    def check(self, batch: Batch) -> None:
        """Raise `ModelError` for a batch that would train something else than meant."""
        ...

    def arguments(self, batch: Batch) -> Arguments:
        """What the model is called with."""
        ...

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The loss of the model's output."""
        ...


class PlainCall:
    """`model(inputs)`, and cross-entropy or a loss of the user's own against the targets."""

    def __init__(self, loss: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        self._loss = loss or classify

    def check(self, batch: Batch) -> None:
        """A mapping must say which of its tensors are the targets."""
        if isinstance(batch, Mapping):
            _target_key(batch)

    def arguments(self, batch: Batch) -> Arguments:
        """The inputs, each in its place; of a mapping, all but the targets by name."""
        if isinstance(batch, Mapping):
            target = _target_key(batch)
            return (), {key: value for key, value in batch.items() if key != target}
        inputs = batch[0]
        return (inputs if isinstance(inputs, tuple) else (inputs,)), {}

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The loss of the output against the targets."""
        return self._loss(output, batch[_target_key(batch)] if isinstance(batch, Mapping) else batch[1])


class ComputeLoss:
    """Computes the scalar loss of a model on a batch. Only the first call is checked."""

    def __init__(self, convention: Convention, name: str) -> None:
        self.convention = convention
        self._name = name
        self._checked = False

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of the model, which may be wrapped by a strategy, on these rows."""
        if not self._checked:
            loss = self._first_call(model, batch)
            self._checked = True
            return loss
        args, kwargs = self.convention.arguments(batch)
        return self.convention.loss(model(*args, **kwargs), batch)

    def _first_call(self, model: nn.Module, batch: Batch) -> Tensor:
        self.convention.check(batch)
        try:
            args, kwargs = self.convention.arguments(batch)
            output = model(*args, **kwargs)
        except Exception as error:
            if not _is_users_mistake(error):
                raise
            raise ModelError(
                f"The model {self._name} cannot take the batch {describe(batch)}: {_words(error)}\n"
                "It is called as model(inputs), with several inputs as model(*inputs); give it data of the "
                "shape that it takes (--data, Workload.input or the table [input]), or change its forward."
            ) from error
        try:
            loss = self.convention.loss(output, batch)
        except Exception as error:
            if not _is_users_mistake(error):
                raise
            raise ModelError(
                f"The loss of {self._name} cannot be computed from the output {describe(output)} and the "
                f"batch {describe(batch)}: {_words(error)}"
            ) from error
        _check_loss(loss, self._name)
        return loss


def loss_function(workload: Workload) -> ComputeLoss:
    """How to compute the loss of a workload: by its own loss, its model's convention, or cross-entropy."""
    name = type(workload.model).__name__
    if is_pretrained(workload.model):
        return ComputeLoss(PretrainedCall(workload.model, workload.loss), name)
    return ComputeLoss(PlainCall(workload.loss), name)


def classify(output: Any, targets: Tensor) -> Tensor:
    """Mean cross-entropy; classes are the last dim of the output for tokens, dim 1 for (B, C, ...)."""
    if not isinstance(output, Tensor):
        raise ModelError(
            f"The model gives {describe(output)}, not a tensor, so cross-entropy cannot be computed.\n"
            "Return the logits only, or give a loss of your own: Workload(model=..., loss=...)."
        )
    if output.shape[:-1] == targets.shape:
        return cross_entropy(output.reshape(-1, output.shape[-1]), targets.reshape(-1))
    if output.ndim > 1 and (
        output.shape[:1] + output.shape[2:] == targets.shape or output.shape == targets.shape
    ):
        return cross_entropy(output, targets)
    raise ModelError(
        f"The model gives logits of shape {tuple(output.shape)} for targets of shape "
        f"{tuple(targets.shape)}; cross-entropy needs {(*targets.shape, 'classes')}.\n"
        "Change what the model returns, or give a loss of your own: Workload(model=..., loss=...)."
    )


def describe(value: Any) -> str:
    """What a batch or an output is made of: types and shapes, not values."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(describe(item) for item in value) + ")"
    return f"a {type(value).__name__}"


def _check_loss(loss: Any, name: str) -> None:
    if not isinstance(loss, Tensor):
        raise ModelError(f"The loss of {name} is {describe(loss)}; it must be a scalar tensor.")
    if loss.ndim:
        raise ModelError(
            f"The loss of {name} has the shape {tuple(loss.shape)}; it must be a scalar.\n"
            "Take the mean over the batch, for example with loss.mean()."
        )
    if not loss.is_floating_point():
        raise ModelError(
            f"The loss of {name} is of type {describe(loss)}; it must be a floating-point scalar."
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ModelError(
            f"The loss of {name} does not depend on any parameter that is trained: it has no gradient.\n"
            "Check for detach(), item() or torch.no_grad() in the model or the loss, and for frozen weights."
        )


def _target_key(batch: Mapping[str, Tensor]) -> str:
    for key in _TARGET_KEYS:
        if key in batch:
            return key
    raise ModelError(
        f"The batch has the keys {', '.join(map(str, batch))}, and none of them is '{_TARGET_KEYS[0]}' or "
        f"'{_TARGET_KEYS[1]}', so there is nothing to compute a loss against."
    )


def _is_users_mistake(error: Exception) -> bool:
    """Not so: errors explained already, a full device, and ranks that lost each other."""
    if isinstance(error, SynclineError | torch.OutOfMemoryError | torch.distributed.DistError):
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    deepest = Path(traceback.tb_frame.f_code.co_filename) if traceback else Path()
    return not deepest.is_relative_to(_TORCH_DISTRIBUTED)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
