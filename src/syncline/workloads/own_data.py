"""Samples from a data set of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, default_collate

from syncline.errors import DataError
from syncline.workloads.workload import Batch


class DatasetSamples:
    """A map-style `torch.utils.data.Dataset`, fetched sample by sample and stacked as a `DataLoader` does.

    Random augmentation inside the data set draws from the rank's own random state.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        if not isinstance(dataset, Sized):
            raise DataError(
                f"The data set of {name}, a {type(dataset).__name__}, has no __len__, so its samples cannot "
                "be shuffled.\nGive it one, or give an iterable of whole batches."
            )
        self._count = len(dataset)
        self._dataset: Any = dataset
        self._name = name
        self._fetch: Callable[[list[int]], Any] = getattr(dataset, "__getitems__", self._fetch_each)

    def __len__(self) -> int:
        """How many samples the data set has."""
        return self._count

    def rows(self, indices: np.ndarray) -> Batch:
        """The samples of these numbers."""
        samples = self._fetch([int(index) for index in indices])
        try:
            return as_batch(default_collate(samples), self._name)
        except (TypeError, RuntimeError) as error:
            raise DataError(
                f"The samples of the data set of {self._name} cannot be stacked to a batch: {error}\n"
                "Each must be (inputs, target) or a mapping, of tensors or numbers of the same shape."
            ) from error

    def _fetch_each(self, indices: list[int]) -> list[Any]:
        return [self._dataset[index] for index in indices]


def is_map_style(batches: object) -> bool:
    """Whether samples can be fetched from it by number, rather than batches one after the other."""
    if isinstance(batches, IterableDataset):
        return False
    return isinstance(batches, TorchDataset) or hasattr(batches, "__getitems__")


def as_batch(value: Any, name: str) -> Batch:
    """A batch as Syncline passes it on: what loaders give as lists becomes tuples."""
    match value:
        case dict():
            return value
        case [inputs, targets]:
            return (tuple(inputs) if isinstance(inputs, list) else inputs), targets
        case _ if hasattr(value, "keys"):
            return {key: value[key] for key in value}
    size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    raise DataError(
        f"A batch of {name} is a {type(value).__name__}{size}; it must be (inputs, targets), or a mapping "
        "of the model's keyword arguments."
    )
