"""A batch that has the shapes and types of real ones, and no values: what capturing a model needs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from syncline.errors import ConfigError
from syncline.workloads.load import LoadedWorkload
from syncline.workloads.workload import Batch, Inputs, InputSpec


def example_batch(input: InputSpec, batch: int, device: torch.device | str = "meta") -> tuple[Inputs, Tensor]:
    """Inputs and targets for a model that takes `input`, `batch` samples of them."""

    def ids(*shape: int) -> Tensor:
        return torch.zeros((batch, *shape), dtype=torch.long, device=device)

    if input.kind == "tokens":
        return ids(*input.shape), ids(*input.shape)
    if input.kind == "token-pairs":
        source, target = input.shape
        return (ids(source), ids(target)), ids(target)
    return torch.zeros((batch, *input.shape), device=device), ids()


def workload_batch(workload: LoadedWorkload, batch: int) -> Batch:
    """A batch of what the workload takes, or of the user's own data where only that says its shape.

    Raises:
        ConfigError: Nothing says what the model takes.
    """
    if workload.input is not None:
        return example_batch(workload.input, batch)
    if workload.data is not None:
        samples = workload.data.train
        return samples.rows(np.arange(batch) % len(samples))
    own = workload.batches
    for given in (own() if callable(own) else own) or ():
        return given
    raise ConfigError(
        f"Nothing says what {workload.name} takes.\nReturn a Workload with an InputSpec as input, or add a "
        "table [input] with kind, shape and classes to the file given with --config."
    )


def batch_size(batch: Batch) -> int:
    """How many samples a batch has."""
    parts = list(batch.values()) if isinstance(batch, dict) else list(batch)
    first = parts[0]
    while isinstance(first, tuple | list):
        first = first[0]
    if not isinstance(first, Tensor) or not first.ndim:
        raise ConfigError("The first thing in a batch must be a tensor whose dim 0 runs over the samples.")
    return int(first.shape[0])
