"""What a rank's memory holds in a step, counted by kind."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKinds:
    """Bytes of one rank; each kind at its own peak within a step."""

    weights: int
    """Parameters and buffers that the rank keeps."""
    gradients: int
    """When the optimizer takes its step."""
    optimizer_state: int
    activations: int
    """What forward saves for backward, weights not counted."""


class KindsMeter:
    """Counts by kind what a step holds."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._gradients = 0
        self._saved = _SavedBytes()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Watch the step that is made inside."""
        self._saved.leave_out(_storages([*self._model.parameters(), *self._model.buffers()]))
        hook = self._optimizer.register_step_pre_hook(self._count_gradients)
        try:
            with saved_tensors_hooks(self._saved.pack, _unpack):
                yield
        finally:
            hook.remove()

    def found(self) -> MemoryKinds:
        """What the step held."""
        inner = getattr(self._optimizer, "optim", self._optimizer)
        state = [value for entry in inner.state.values() for value in entry.values()]
        return MemoryKinds(
            weights=_bytes([*self._model.parameters(), *self._model.buffers()]),
            gradients=self._gradients,
            optimizer_state=_bytes(value for value in state if isinstance(value, Tensor)),
            activations=self._saved.peak,
        )

    def _count_gradients(self, *_: Any) -> None:
        # Some strategies let the optimizer hold other tensors than the model does.
        held = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in (*self._model.parameters(), *held) if p.grad is not None]
        self._gradients = max(self._gradients, _bytes(gradients))


class _SavedBytes:
    """Bytes of the tensors that autograd keeps just now; several that share memory count once."""

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0
        self._holders: Counter[int] = Counter()
        self._left_out: set[int] = set()

    def leave_out(self, storages: dict[int, int]) -> None:
        """Storages that are counted elsewhere."""
        self._left_out = set(storages)

    def pack(self, tensor: Tensor) -> _Saved:
        local = _local(tensor)
        holder = _Saved(tensor.detach())
        is_weight = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        for place, size in _storages([local]).items():
            if is_weight or place in self._left_out:
                continue
            self._holders[place] += 1
            if self._holders[place] == 1:
                self._now += size
                self.peak = max(self.peak, self._now)
            weakref.finalize(holder, self._drop, place, size)
        return holder

    def _drop(self, place: int, size: int) -> None:
        self._holders[place] -= 1
        if not self._holders[place]:
            self._now -= size


class _Saved:
    """Holds a saved tensor for as long as autograd does."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _unpack(holder: _Saved) -> Tensor:
    return holder.tensor


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by address of what tensors lie in."""
    found = (_local(tensor).untyped_storage() for tensor in tensors if not tensor.is_meta)
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_storages(tensors).values())
