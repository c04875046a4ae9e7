"""Taking batches apart by rows, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from syncline.workloads.workload import Batch


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with each of its tensors changed; tuples, lists and mappings keep their form."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(value, change) for value in batch)
    return batch


def flat_tensors(batch: Any) -> list[Tensor]:
    """All tensors of a batch in a fixed order: places in order, keys in alphabetical order."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for key in sorted(batch) for tensor in flat_tensors(batch[key])]
    if isinstance(batch, tuple | list):
        return [tensor for value in batch for tensor in flat_tensors(value)]
    return []


def in_fixed_order(batch: Any) -> Any:
    """The batch with its keys in the order of `flat_tensors`."""
    if isinstance(batch, Mapping):
        return {key: in_fixed_order(batch[key]) for key in sorted(batch)}
    return type(batch)(map(in_fixed_order, batch)) if isinstance(batch, tuple | list) else batch


def first_tensor(batch: Any) -> Tensor:
    """Some tensor of the batch; ValueError when it has none."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(values, Tensor):
        return values
    for value in values:
        if isinstance(value, Tensor | Mapping | tuple | list):
            return first_tensor(value)
    raise ValueError("the batch holds no tensor")


def list_tensors(batch: Any) -> list[Tensor]:
    """All tensors of the batch, in the order in which its tuples, lists and mappings hold them."""
    if isinstance(batch, Tensor):
        return [batch]
    values = batch.values() if isinstance(batch, Mapping) else batch
    return [tensor for value in values for tensor in list_tensors(value)]


def count_rows(batch: Batch) -> int:
    """How many samples a batch has."""
    return first_tensor(batch).shape[0]


def slice_rows(batch: Batch, part: slice) -> Batch:
    """Some rows of each tensor of the batch."""
    return map_tensors(batch, lambda tensor: tensor[part])


def split_rows(batch: Batch, parts: int) -> list[Batch]:
    """The batch cut into equal runs of rows."""
    if parts == 1:
        return [batch]
    share = count_rows(batch) // parts
    return [slice_rows(batch, slice(number * share, (number + 1) * share)) for number in range(parts)]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device, copied without blocking where the memory allows that."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
