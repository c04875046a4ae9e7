"""Which samples make the global batch of each step, and fetching a rank's rows of it.

The batch of a step depends on the seed, the global batch size and the step only. So every strategy sees
the same batches on any number of ranks, and a resumed run goes on with the next sample.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.distributed.checkpoint.stateful import Stateful

from syncline.errors import CheckpointError, DataError
from syncline.workloads.batch import count_rows, slice_rows
from syncline.workloads.load import LoadedWorkload
from syncline.workloads.own_data import as_batch
from syncline.workloads.randomness import seeded
from syncline.workloads.workload import Batch, Samples

_WHOLE = slice(None)


class BatchSource(Protocol):
    """Global batches by step, counted from 0."""

    def rows(self, step: int, part: slice = _WHOLE) -> Batch:
        """Some rows of the global batch of a step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs after the steps fetched so far; plain enough for JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any] | None, *, done: int) -> None:
        """Get ready to go on after `done` steps."""
        ...

    def close(self) -> None:
        """Let go of files and processes."""
        ...


class GlobalBatches:
    """Batches from samples that can be fetched by number.

    The samples of all epochs, each epoch in a new random order, form one endless row; the batch of step k is
    its part [k B, (k + 1) B). No sample is left out or comes twice in an epoch, even when a batch spans two.
    """

    def __init__(self, samples: Samples, global_batch: int, seed: int) -> None:
        self._samples = samples
        self._count = len(samples)
        self._size = global_batch
        self._seed = seed
        self._orders: dict[int, np.ndarray] = {}
        if self._count < global_batch:
            raise DataError(
                f"A global batch has {global_batch} samples, but there are only {self._count} to train on.\n"
                f"Use --batch {self._count} or less, or more data."
                if self._count
                else "There are no samples to train on."
            )

    def indices(self, step: int) -> np.ndarray:
        """The numbers of the samples of a step's global batch."""
        start, end = step * self._size, (step + 1) * self._size
        epochs = range(start // self._count, (end - 1) // self._count + 1)
        pieces = []
        for epoch in epochs:
            first = epoch * self._count
            pieces.append(self._order(epoch)[max(start - first, 0) : end - first])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def rows(self, step: int, part: slice = _WHOLE) -> Batch:
        """Some rows of the global batch of a step; the others are not fetched."""
        return self._samples.rows(self.indices(step)[part])

    def state_dict(self) -> dict[str, Any]:
        """What the order depends on besides the step."""
        return {"samples": self._count, "global_batch": self._size, "seed": self._seed}

    def load_state_dict(self, state: dict[str, Any] | None, *, done: int) -> None:
        """Check that the order is that of the run to go on with; the step says the rest."""
        for key, now in self.state_dict().items():
            before = (state or {}).get(key, now)
            if before != now:
                what = {"samples": "number of training samples", "global_batch": "global batch size"}
                raise CheckpointError(
                    f"The checkpoint was made with a {what.get(key, key)} of {before}, now it is {now}: from "
                    f"step {done} on, samples would be repeated or left out.\n"
                    "Resume with the same data, batch size and seed, or start a new run."
                )

    def close(self) -> None:
        """Forget the orders."""
        self._orders.clear()

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, epoch])))
            self._orders = {number: order for number, order in self._orders.items() if number == epoch - 1}
            self._orders[epoch] = random.permutation(self._count)
        return self._orders[epoch]


class IterableBatches:
    """Whole global batches of the user's own, one after the other, from the start again when they end.

    Every rank iterates over all of them and takes its rows. Random numbers that the iterable draws depend on
    the seed and the step alone, so that all ranks, and a resumed run, get the same. To resume, an iterable
    with `state_dict` and `load_state_dict` is asked to continue; any other is run through up to the step.

    Args:
        batches: An iterable, or a function without arguments that makes one for each pass.
        global_batch: How many rows each batch must have.
        seed: Of the random numbers.
        name: What the batches belong to, for messages.
    """

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        global_batch: int,
        seed: int,
        *,
        name: str = "the workload",
    ) -> None:
        self._batches = batches
        self._size = global_batch
        self._seed = seed
        self._name = name
        self._iterable: Iterable[Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._passed = 0
        self._fetched = 0
        self._batch: Batch | None = None

    def rows(self, step: int, part: slice = _WHOLE) -> Batch:
        """Some rows of the batch of a step, which must not lie before the last one asked for."""
        if step < self._fetched - 1:
            raise ValueError(f"step {step} was asked for after step {self._fetched - 1}")
        while self._fetched <= step or self._batch is None:
            self._batch = self._fetch()
        return slice_rows(self._batch, part)

    def state_dict(self) -> dict[str, Any]:
        """The position of the iterable, if it can tell; else nothing is needed but the step."""
        if not isinstance(self._iterable, Stateful):
            return {}
        return {"passed": self._passed, "iterable": _pack(self._iterable.state_dict())}

    def load_state_dict(self, state: dict[str, Any] | None, *, done: int) -> None:
        """Have the iterable go on from its position; without one, the next fetch runs through the steps."""
        if not state:
            return
        iterable = self._open()
        if not isinstance(iterable, Stateful):
            raise CheckpointError(
                f"The checkpoint holds the position of the batches of {self._name}, but they are now a "
                f"{type(iterable).__name__}, which has no load_state_dict.\nResume with the same batches."
            )
        iterable.load_state_dict(_unpack(state["iterable"], self._name))
        self._iterable, self._fetched, self._passed = iterable, done, int(state["passed"])

    def close(self) -> None:
        """Drop the iterator, which ends the workers of a `DataLoader`."""
        self._iterator = self._iterable = self._batch = None

    def _fetch(self) -> Batch:
        with seeded(self._seed, self._fetched):
            found = self._next()
        batch = as_batch(found, self._name)
        self._check(batch)
        self._fetched += 1
        self._passed += 1
        return batch

    def _next(self) -> Any:
        if self._iterator is None:
            self._iterable = self._open() if self._iterable is None else self._iterable
            self._iterator = iter(self._iterable)
        try:
            return next(self._iterator)
        except StopIteration:
            return self._start_again()

    def _start_again(self) -> Any:
        passed, self._passed = self._passed, 0
        if passed and self._iterator is not self._batches:
            self._iterable = self._open()
            self._iterator = iter(self._iterable)
            for found in self._iterator:
                return found
        if passed:
            raise DataError(
                f"The batches of {self._name} ended after {passed}, and a {type(self._batches).__name__} "
                "cannot start again.\nGive a function that makes them, or a DataLoader, or train for fewer "
                "steps."
            )
        raise DataError(f"The batches of {self._name} are empty.")

    def _open(self) -> Iterable[Any]:
        opened = self._batches if isinstance(self._batches, Iterable) else self._batches()
        if not isinstance(opened, Iterable):
            raise DataError(f"The batches of {self._name} are a {type(opened).__name__}, not an iterable.")
        return opened

    def _check(self, batch: Batch) -> None:
        size = count_rows(batch)
        if size == self._size:
            return
        if self._passed and size < self._size:
            raise DataError(
                f"Batch {self._passed + 1} of {self._name} has {size} rows, the others {self._size}.\n"
                "Leave the last, smaller one out: DataLoader(..., drop_last=True)."
            )
        raise DataError(
            f"A batch of {self._name} has {size} rows, but the global batch size is {self._size}: its own "
            f"batches must be whole global batches.\nUse --batch {size}, or batches of {self._size} rows."
        )


def open_batches(workload: LoadedWorkload, global_batch: int, seed: int) -> BatchSource:
    """The batches to train a workload on."""
    if workload.batches is not None:
        return IterableBatches(workload.batches, global_batch, seed, name=workload.name)
    if workload.data is None:
        raise DataError(f"There is no data to train {workload.name} on. Name some with --data.")
    return GlobalBatches(workload.data.train, global_batch, seed)


def evaluation_batches(
    samples: Samples, global_batch: int, limit: int | None = None, *, part: slice = _WHOLE
) -> Iterator[Batch]:
    """Some rows of the first `limit` whole batches, in the order of the samples.

    An incomplete batch at the end is left out, so that all ranks have equal shares. When there is not even
    one whole batch, the samples are repeated to fill one.
    """
    if len(samples) == 0:
        raise DataError("There are no samples to evaluate on.")
    whole = max(1, len(samples) // global_batch)
    for number in range(whole if limit is None else min(limit, whole)):
        start = number * global_batch
        indices = np.arange(start, start + global_batch) % len(samples)
        yield samples.rows(indices[part])


def _pack(state: dict[str, Any]) -> str:
    """The state of a user's iterable as text: it may hold tensors, which JSON cannot."""
    file = io.BytesIO()
    torch.save(state, file)
    return base64.b64encode(file.getvalue()).decode("ascii")


def _unpack(text: str, name: str) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"The position of the batches of {name} cannot be read: {error}") from error
