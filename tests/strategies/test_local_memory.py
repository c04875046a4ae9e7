"""What a stage keeps for backward: counted for pipelines and for local parallelism, beside the formulas."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks

from strategies.test_conformance import BATCH, Course, prepare
from syncline.strategies.protocol import StepOptions
from syncline.workloads.batch import list_tensors

MODEL = "mlp:size=tiny,layers=8,width=64,features=64"


class Kept:
    """A saved tensor, counted until backward lets go of it."""

    def __init__(self, tensor, counter):
        self.tensor, self._counter = tensor, counter
        counter.add(tensor)

    def __del__(self):
        self._counter.drop(self.tensor)


class SavedBytes:
    """Counts the memory of saved tensors, each once, without parameters and batches."""

    def __init__(self, parameters):
        self._others = {p.untyped_storage().data_ptr() for p in parameters}
        self._users = Counter()
        self._now = self.peak = 0

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._others:
            return
        self._users[storage.data_ptr()] += 1
        if self._users[storage.data_ptr()] == 1:
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)

    def drop(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._others:
            return
        self._users[storage.data_ptr()] -= 1
        if not self._users[storage.data_ptr()]:
            self._now -= storage.nbytes()

    @contextmanager
    def counting(self, batch):
        self._others |= {tensor.untyped_storage().data_ptr() for tensor in list_tensors(batch)}
        with saved_tensors_hooks(lambda tensor: Kept(tensor, self), lambda kept: kept.tensor):
            yield


def peak_of(course):
    step, batches = prepare(course)
    heads = [block.head for block in getattr(step, "blocks", []) if block.head is not None]
    counter = SavedBytes([p for module in (step.model, *heads) for p in module.parameters()])
    held = [batches.rows(number, step.rows(BATCH)) for number in range(2)]
    for batch in held:
        with counter.counting(batch):
            step(batch)
    # The first stage is done before the others have read what it sent.
    dist.barrier()
    return counter.peak


@pytest.fixture(scope="module")
def peaks():
    return {}


@pytest.fixture
def peak(run_ranks, peaks):
    def run(strategy, ranks=2, accumulate=1, model=MODEL):
        key = strategy, ranks, accumulate, model
        if key not in peaks:
            course = Course(strategy, model, options=StepOptions(accumulate=accumulate))
            peaks[key] = run_ranks(peak_of, ranks, course)
        return peaks[key]

    return run


def test_a_local_stage_keeps_one_micro_batch(peak):
    """Of 4 micro-batches GPipe keeps all, 1F1B as many as there are stages behind, local one."""
    cuts = "cuts=blocks.3"
    local = peak(f"local:{cuts},head=linear", accumulate=4)[0]
    gpipe = peak(f"pipeline:{cuts},schedule=gpipe,microbatches=4")[0]
    one_f_one_b = peak(f"pipeline:{cuts},schedule=1f1b,microbatches=4")[0]
    logits = 2 * 10 * 4
    assert local <= gpipe / 4 + 2 * logits
    assert one_f_one_b == pytest.approx(gpipe / 2, rel=0.1)
    assert local < one_f_one_b < gpipe


def test_it_does_not_grow_with_micro_batches(peak):
    """The same rows in each: 8 at once, or twice 4."""
    once = peak("local:cuts=blocks.3,head=linear")
    twice = peak("local:cuts=blocks.3,head=linear", accumulate=2)
    assert [two <= 0.6 * one for one, two in zip(once, twice, strict=True)] == [True, True]


def test_it_does_not_grow_with_stages(peak):
    two = peak("local:cuts=blocks.3,head=linear")
    four = peak("local:cuts=blocks.1+blocks.3+blocks.5,head=linear", ranks=4)
    assert max(four) < max(two)


def test_more_stages_of_the_same_size_keep_no_more(peak):
    """Stages of 2 layers, 4 micro-batches of the same rows: 1F1B's first stage keeps one for each stage."""
    short, cuts = "mlp:size=tiny,layers=4,width=64,features=64", ("blocks.1", "blocks.1+blocks.3+blocks.5")
    local, one_f_one_b = (
        [peak(f"{name},cuts={cuts[0]}", 2, parts, short), peak(f"{name},cuts={cuts[1]}", 4, parts)]
        for name, parts in (("local:head=linear", 4), ("pipeline:microbatches=4", 1))
    )
    assert local[1][0] == local[0][0]
    assert max(local[1]) == max(local[0])
    assert one_f_one_b[1][0] == pytest.approx(2 * one_f_one_b[0][0], rel=0.1)
