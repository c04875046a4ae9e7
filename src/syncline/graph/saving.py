"""What an op keeps for its backward pass, asked of autograd itself on tensors without memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from syncline._torch_compat import fake_mode, storage_key
from syncline.graph.opgraph import Tensor
from syncline.graph.recording import Draft


@dataclass(frozen=True, slots=True)
class Saved:
    """The places of saved tensors among the op's inputs and outputs, and the bytes of all others."""

    places: tuple[int, ...] = ()
    extra_bytes: int = 0


def saved_for_backward(draft: Draft) -> Saved:
    """What autograd saves when the op runs. Nothing, if none of its inputs needs a gradient.

    An op that cannot run without memory is taken to save all that it takes and gives.
    """
    if draft.is_view or not any(tensor.requires_grad for tensor in draft.inputs):
        return Saved()
    try:
        return _observed(draft)
    except RuntimeError:
        return Saved(tuple(range(len(draft.inputs) + len(draft.outputs))))


def _observed(draft: Draft) -> Saved:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    inputs: list[torch.Tensor] = []
    with fake_mode(), torch.enable_grad():
        arguments = {name: _stand_in(value, inputs) for name, value in draft.arguments.items()}
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            result = draft.target(**arguments)
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    return _sort(kept, [*inputs, *outputs])


def _stand_in(value: Any, inputs: list[torch.Tensor]) -> Any:
    if isinstance(value, Tensor):
        inputs.append(
            torch.empty(value.shape, dtype=value.dtype, device="cpu", requires_grad=value.requires_grad)
        )
        return inputs[-1]
    return [_stand_in(item, inputs) for item in value] if isinstance(value, tuple) else value


def _sort(kept: list[torch.Tensor], known: list[torch.Tensor]) -> Saved:
    first: dict[int, int] = {}
    for place, tensor in enumerate(known):
        first.setdefault(storage_key(tensor), place)
    places = {first[storage_key(tensor)] for tensor in kept if storage_key(tensor) in first}
    others = {storage_key(tensor): tensor for tensor in kept if storage_key(tensor) not in first}
    return Saved(tuple(sorted(places)), sum(one.untyped_storage().nbytes() for one in others.values()))
