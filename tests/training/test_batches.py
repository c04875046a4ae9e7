"""The order of samples: the same on any number of ranks, nothing skipped or repeated, resumable."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from syncline.errors import CheckpointError, DataError
from syncline.training.batches import GlobalBatches, IterableBatches, evaluation_batches, open_batches
from syncline.workloads.calling import ComputeLoss, PlainCall
from syncline.workloads.load import LoadedWorkload
from syncline.workloads.own_data import DatasetSamples


class Counted:
    """Samples that are their own numbers, and remember which were fetched."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: np.ndarray) -> Any:
        self.fetched += indices.tolist()
        numbers = torch.from_numpy(np.asarray(indices))
        return numbers, numbers


def numbers_of(batch: Any) -> list[int]:
    return batch[0].tolist()


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


sizes = st.tuples(st.integers(1, 60), st.integers(1, 60)).filter(lambda both: both[1] <= both[0])
seeds = st.integers(0, 2**32)


@given(sizes=sizes, seed=seeds, ranks=st.integers(1, 5), step=st.integers(0, 50))
def test_any_number_of_ranks_sees_the_same_global_batch(
    sizes: tuple[int, int], seed: int, ranks: int, step: int
) -> None:
    count, batch = sizes
    share = -(-batch // ranks)
    parts = [slice(rank * share, (rank + 1) * share) for rank in range(ranks)]
    each = [numbers_of(GlobalBatches(Counted(count), batch, seed).rows(step, part)) for part in parts]
    assert flat(each) == numbers_of(GlobalBatches(Counted(count), batch, seed).rows(step))


@given(sizes=sizes, seed=seeds)
def test_every_epoch_is_a_permutation_even_across_batches(sizes: tuple[int, int], seed: int) -> None:
    count, batch = sizes
    batches = GlobalBatches(Counted(count), batch, seed)
    stream = flat(numbers_of(batches.rows(step)) for step in range(-(-3 * count // batch)))
    for epoch in range(3):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))
    if count > 20:
        assert stream[:count] != stream[count : 2 * count]


@given(sizes=sizes, seed=seeds, stop=st.integers(0, 30))
def test_going_on_at_any_step_is_the_same_as_never_stopping(
    sizes: tuple[int, int], seed: int, stop: int
) -> None:
    count, batch = sizes
    through = GlobalBatches(Counted(count), batch, seed)
    seen = [numbers_of(through.rows(step)) for step in range(stop + 5)]
    resumed = GlobalBatches(Counted(count), batch, seed)
    resumed.load_state_dict(json.loads(json.dumps(through.state_dict())), done=stop)
    assert [numbers_of(resumed.rows(step)) for step in range(stop, stop + 5)] == seen[stop:]


def test_only_the_part_is_fetched_and_seeds_differ() -> None:
    samples = Counted(100)
    batches = GlobalBatches(samples, 10, seed=1)
    assert len(numbers_of(batches.rows(3, slice(2, 4)))) == 2
    assert len(samples.fetched) == 2
    assert batches.indices(0).tolist() != GlobalBatches(samples, 10, seed=2).indices(0).tolist()
    batches.close()


def test_a_batch_larger_than_the_data() -> None:
    with pytest.raises(DataError, match=r"has 11 samples, but there are only 10 .*\nUse --batch 10 or less"):
        GlobalBatches(Counted(10), 11, seed=0)
    with pytest.raises(DataError, match="no samples to train on"):
        GlobalBatches(Counted(0), 1, seed=0)


@pytest.mark.parametrize(
    ("count", "batch", "seed", "message"),
    [
        (20, 4, 0, "number of training samples of 10, now it is 20"),
        (10, 5, 0, "global batch size of 4, now it is 5: from step 7"),
        (10, 4, 1, "seed of 0, now it is 1"),
    ],
)
def test_resuming_with_something_else(count: int, batch: int, seed: int, message: str) -> None:
    state = GlobalBatches(Counted(10), 4, 0).state_dict()
    with pytest.raises(CheckpointError, match=message):
        GlobalBatches(Counted(count), batch, seed).load_state_dict(state, done=7)


def loader(count: int = 10, batch: int = 4, **options: Any) -> DataLoader[Any]:
    numbers = torch.arange(count)
    return DataLoader(TensorDataset(numbers, numbers), batch_size=batch, **options)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shuffling_loader_is_the_same_on_all_ranks_and_after_a_resume(workers: int) -> None:
    def batches() -> IterableBatches:
        made = loader(batch=2, shuffle=True, drop_last=True, num_workers=workers)
        return IterableBatches(made, 2, seed=3)

    through = batches()
    seen = []
    for step in range(12):
        torch.rand(step)
        seen.append(numbers_of(through.rows(step, slice(0, 1))) + numbers_of(through.rows(step, slice(1, 2))))
    assert sorted(flat(seen[:5])) == sorted(flat(seen[5:10])) == list(range(10))
    assert seen[:5] != seen[5:10]
    resumed = batches()
    resumed.load_state_dict(through.state_dict(), done=7)
    torch.manual_seed(99)
    assert [numbers_of(resumed.rows(step)) for step in range(7, 12)] == seen[7:]
    through.close()
    resumed.close()


def test_the_random_numbers_of_training_are_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    IterableBatches(loader(shuffle=True), 4, seed=0).rows(0)
    assert torch.equal(torch.rand(3), expected)


class Positioned:
    """An iterable that can say where it stands and go on from there."""

    def __init__(self) -> None:
        self.position = 0
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < 5:
            self.position += 1
            self.given += 1
            yield torch.full((2,), self.position), torch.zeros(2)
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": torch.tensor(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = int(state["position"])


@pytest.mark.parametrize("done", [1, 3, 5, 6, 10])
def test_an_iterable_with_a_state_goes_on_without_running_through(done: int) -> None:
    through = IterableBatches(Positioned(), 2, seed=0)
    seen = [numbers_of(through.rows(step)) for step in range(done)]
    state = json.loads(json.dumps(through.state_dict()))
    seen += [numbers_of(through.rows(step)) for step in range(done, done + 4)]
    iterable = Positioned()
    resumed = IterableBatches(iterable, 2, seed=0)
    resumed.load_state_dict(state, done=done)
    assert [numbers_of(resumed.rows(step)) for step in range(done, done + 4)] == seen[done:]
    assert iterable.given == 4
    with pytest.raises(CheckpointError, match="now a DataLoader"):
        IterableBatches(loader(), 2, seed=0).load_state_dict(state, done=done)
    with pytest.raises(CheckpointError, match="cannot be read"):
        resumed.load_state_dict({**state, "iterable": "AAAA"}, done=done)


def counting(batches: int) -> Iterator[Any]:
    for number in range(batches):
        yield torch.full((2,), number), torch.zeros(2)


def test_a_function_makes_each_pass() -> None:
    batches = IterableBatches(lambda: counting(3), 2, seed=0)
    assert [numbers_of(batches.rows(step))[0] for step in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(ValueError, match="step 2 was asked for after step 6"):
        batches.rows(2)


@pytest.mark.parametrize(
    ("batches", "step", "message"),
    [
        (counting(3), 3, "ended after 3, and a generator cannot start again"),
        ([], 0, "are empty"),
        (lambda: None, 0, "a NoneType, not an iterable"),
        (loader(batch=8), 0, "has 8 rows, but the global batch size is 2.*\nUse --batch 8"),
        (loader(count=5, batch=2), 2, "Batch 3 of mine has 1 rows, the others 2.\n.*drop_last=True"),
        ([torch.zeros(2)], 0, "a Tensor; it must be"),
        ([(torch.zeros(2),) * 3], 0, r"a tuple of 3; it must be \(inputs, targets\)"),
    ],
)
def test_mistakes_in_own_batches(batches: Any, step: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        IterableBatches(batches, 2, seed=0, name="mine").rows(step)


def test_mappings_are_sliced_by_rows() -> None:
    batches = IterableBatches(
        [{"input_ids": torch.arange(6).view(2, 3), "labels": torch.arange(2)}], 2, seed=0
    )
    part: Any = batches.rows(0, slice(1, 2))
    assert part["input_ids"].tolist() == [[3, 4, 5]]
    assert part["labels"].tolist() == [1]


def test_evaluation_has_a_fixed_order_and_whole_batches() -> None:
    seen = [numbers_of(batch) for batch in evaluation_batches(Counted(10), 4)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    limited = evaluation_batches(Counted(10), 4, 1, part=slice(2, 4))
    assert [numbers_of(batch) for batch in limited] == [[2, 3]]
    assert [numbers_of(batch) for batch in evaluation_batches(Counted(3), 4)] == [[0, 1, 2, 0]]
    with pytest.raises(DataError, match="no samples to evaluate"):
        next(evaluation_batches(Counted(0), 4))


def test_batches_of_a_workload() -> None:
    def loaded(batches: Any) -> LoadedWorkload:
        return LoadedWorkload(
            name="mine",
            compute_loss=ComputeLoss(PlainCall(), "mine"),
            seed=0,
            own_batches=batches,
            make_model=lambda device: torch.nn.Linear(1, 1),
        )

    assert isinstance(open_batches(loaded(loader()), 4, 0), IterableBatches)
    samples = open_batches(loaded(TensorDataset(torch.arange(8.0), torch.arange(8))), 4, 0)
    assert isinstance(samples, GlobalBatches)
    inputs, targets = samples.rows(0)
    assert torch.equal(torch.as_tensor(inputs).long(), torch.as_tensor(targets))
    with pytest.raises(DataError, match="no data to train mine on"):
        open_batches(loaded(None), 4, 0)


def test_own_samples_must_have_a_length_and_stack() -> None:
    class NoLength(torch.utils.data.Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(index + 1), 0

    class Ragged(NoLength):
        def __len__(self) -> int:
            return 4

    with pytest.raises(DataError, match="NoLength, has no __len__"):
        DatasetSamples(NoLength(), "mine")
    with pytest.raises(DataError, match="of mine cannot be stacked"):
        DatasetSamples(Ragged(), "mine").rows(np.arange(2))
