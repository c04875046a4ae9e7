"""The words in which models and data speak to the rest: inputs, batches, samples, workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from syncline.errors import ConfigError

Inputs: TypeAlias = Tensor | tuple[Tensor, ...]
Batch: TypeAlias = tuple[Inputs, Tensor] | Mapping[str, Tensor]
"""Inputs and targets, or the keyword arguments of a `transformers` model. Dim 0 is the batch."""

OptimizerFactory: TypeAlias = Callable[[Any], torch.optim.Optimizer]
"""Makes the optimizer from parameters or parameter groups."""

INPUT_KINDS: Mapping[str, tuple[str, ...]] = {
    "features": ("features",),
    "image": ("channels", "height", "width"),
    "tokens": ("length",),
    "token-pairs": ("source length", "target length"),
}
"""The kinds of input, each with the names of the dims of its shape."""


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

    def __post_init__(self) -> None:
        dims = INPUT_KINDS.get(self.kind)
        if dims is None:
            known = ", ".join(INPUT_KINDS)
            raise ConfigError(f"There is no kind of input '{self.kind}'.\nKnown: {known}.")
        if len(self.shape) != len(dims) or not all(_is_count(size) for size in self.shape):
            raise ConfigError(
                f"The input shape {list(self.shape)} does not fit the kind '{self.kind}', which takes "
                f"{len(dims)} whole number{'s'[: len(dims) > 1]} above 0: [{', '.join(dims)}]."
            )
        if not _is_count(self.classes):
            raise ConfigError(f"The number of classes is {self.classes}; it must be a whole number above 0.")


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
    evaluation: Samples | None = None
    """None only for a user's own data that came without any."""
    name: str = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the user trains; only `model` is required.

    `loss` takes the model's output and the targets. `batches` is a map-style `torch.utils.data.Dataset`
    (shuffled, sharded and resumed by Syncline), an iterable of whole global batches, or a function without
    arguments that makes such an iterable; None to train on the data named on the command line.
    `evaluation` is a map-style data set.
    """

    model: nn.Module
    loss: Callable[[Any, Tensor], Tensor] | None = None
    optimizer: OptimizerFactory | None = None
    batches: TorchDataset[Any] | Iterable[Batch] | Callable[[], Iterable[Batch]] | None = None
    evaluation: TorchDataset[Any] | None = None
    input: InputSpec | None = None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
