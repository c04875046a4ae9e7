"""The words in which models and data speak to the rest: inputs, batches, samples, workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
Batch: TypeAlias = tuple[Inputs, Tensor] | Mapping[str, Tensor]
"""Inputs and targets, or the keyword arguments of a `transformers` model. Dim 0 is the batch."""

OptimizerFactory: TypeAlias = Callable[[Any], torch.optim.Optimizer]
"""Makes the optimizer from parameters or parameter groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """What a model takes, for data that can take several shapes.

    `features`: a float vector. `image`: channels, height, width. `tokens`: ids of one sequence, the
    targets are the same sequence one position later. `token-pairs`: a source sequence and the sequence
    that follows it; inputs are the tuple (source, decoder input).
    """

    kind: Literal["features", "image", "tokens", "token-pairs"]
    shape: tuple[int, ...]
    """Shape of one sample without the batch dim; for `token-pairs` (source length, target length)."""
    classes: int
    """How many classes the model tells apart; for tokens, the vocabulary."""


@runtime_checkable
class Samples(Protocol):
    """Samples that can be fetched by their numbers, many at a time."""

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def rows(self, indices: np.ndarray) -> Batch:
        """The samples of these numbers, stacked along dim 0, in this order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A data set: what is trained on and what is evaluated on, disjoint."""

    train: Samples
    evaluation: Samples
    name: str = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the user trains; only `model` is required.

    `loss` takes the model's output and the targets. `batches` is a map-style `torch.utils.data.Dataset`
    (shuffled, sharded and resumed by Syncline) or an iterable of whole global batches, or None to train
    on the data named on the command line. `evaluation` is a map-style data set.
    """

    model: nn.Module
    loss: Callable[[Any, Tensor], Tensor] | None = None
    optimizer: OptimizerFactory | None = None
    batches: TorchDataset[Any] | Iterable[Batch] | None = None
    evaluation: TorchDataset[Any] | None = None
    input: InputSpec | None = None
