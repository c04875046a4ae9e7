"""Weights in buckets and pieces: cut evenly, copied faithfully, exchanged in turns, kept in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nodes_of_ranks import (
    FEATURES,
    Line,
    Small,
    adam,
    largest_difference,
    node_rank,
    open_step,
    train_step,
    weights,
)
from syncline.strategies.averaging.buckets import Buckets
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.strategies.averaging.schedule import PIECES, Rates
from syncline.training.checkpoint_info import CheckpointInfo, latest_checkpoint
from syncline.training.checkpoints import Checkpoints

IN_PIECES = "daso:warm-up=0,cool-down=0,review-every=1000,sync-every=auto"
FIXED = "daso:warm-up=2,cool-down=2,review-every=3"


@pytest.mark.parametrize("least", [1, 3, 8, 50])
def test_buckets_are_even_and_lose_nothing(least):
    torch.manual_seed(0)
    tensors = [
        torch.randn(7),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(5, 2, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64),
        torch.empty(0),
    ]
    before = [tensor.clone() for tensor in tensors]
    buckets = Buckets(tensors, least=least)
    flats = buckets.read()
    sizes = [len(flat) for flat in flats]
    assert sum(sizes) == 7 + 96 + 10 + 6
    assert max(sizes) - min(sizes[:-1], default=sizes[0]) == 0
    for tensor in tensors:
        tensor.zero_()
    buckets.write(flats)
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    # Some buckets alone.
    last = len(buckets) - 1
    buckets.blend(0.5, [2.0 * flats[-1]], [last])
    torch.testing.assert_close(buckets.read([last])[0], 2.5 * flats[-1], rtol=1e-2, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(buckets.read()[:-1], flats[:-1], strict=True))


def test_large_tensors_fill_several_buckets():
    assert [len(flat) for flat in Buckets([torch.ones(10)], bucket_bytes=16).read()] == [4, 4, 2]
    assert len(Buckets([])) == 0


def open_in_pieces(rates: Rates, **given: Any) -> CyclingStep:
    step = open_step(IN_PIECES, **given)
    assert isinstance(step, CyclingStep)
    step.schedule.rates = rates
    return step


def turns() -> list[list[float]]:
    """A rank's four weights after each step, when nothing but exchanges moves them."""
    step = open_in_pieces(
        Rates(2, 1, pieces=PIECES // 4),
        model=Line(float(dist.get_rank())),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.0),
        compute_loss=lambda model, batch: model(batch[0]),
    )
    seen = []
    for number in range(10):
        train_step(step, number)
        seen.append(next(step.model.parameters()).tolist())
    return seen


def test_pieces_are_exchanged_in_turns(run_ranks):
    # A quarter of the pieces is one weight of four. Sent after steps 1, 3, ..., merged one later.
    for rank, seen in enumerate(run_ranks(turns, 2)):
        for step, places in enumerate(seen, start=1):
            merged = min(4, step // 2)
            assert places == [0.5] * merged + [float(rank)] * (4 - merged)


def small() -> nn.Module:
    torch.manual_seed(5)
    return Small()


def resume(at: int, strategy: str, pieces: int, node_size: int, folder: str) -> float:
    """How far a training that goes on from its checkpoint comes from one that went through."""
    through, again = (
        open_step(strategy, node_size=node_size, model=small(), make_optimizer=adam, steps=14)
        for _ in range(2)
    )
    for step in (through, again):
        assert isinstance(step, CyclingStep)
        step.schedule.rates = Rates(3, 2, pieces=pieces)
    checkpoints = Checkpoints(Path(folder), keep=1, rank=node_rank(node_size))
    for number in range(14):
        if number == at:
            info = CheckpointInfo(
                step=at, samples=0, train_s=0.0, model="", strategy="", world_size=2 * node_size
            )
            checkpoints.save(through.state_dict(), info)
            checkpoints.wait()
            path = latest_checkpoint(Path(folder))
            assert path is not None
            checkpoints.load(again, path)
        train_step(through, number)
        if number >= at:
            train_step(again, number)
    checkpoints.close()
    return largest_difference(weights(through), weights(again))


@pytest.mark.parametrize("wire", ["fp32", "fp16"])
@pytest.mark.parametrize("at", [5, 6, 7])
def test_a_resumed_run_goes_on_with_the_next_piece(at, wire, run_ranks, tmp_path):
    assert run_ranks(resume, 2, at, f"{IN_PIECES},wire={wire}", 5, 1, str(tmp_path)) == [0.0, 0.0]


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_ranks_that_take_turns_go_on_with_what_each_has_said(wire, run_ranks, tmp_path):
    strategy = f"{IN_PIECES},wire={wire}"
    assert run_ranks(resume, 4, 6, strategy, PIECES, 2, str(tmp_path)) == [0.0] * 4


def take_up(saved: str, resumed: str, folder: str) -> dict[str, Any]:
    """Save a training in one form and go on in another."""
    first = open_step(saved, node_size=2, model=small(), make_optimizer=adam, steps=14)
    for number in range(7):
        train_step(first, number)
    checkpoints = Checkpoints(Path(folder), keep=1, rank=node_rank(2))
    info = CheckpointInfo(step=7, samples=0, train_s=0.0, model="", strategy=saved, world_size=4)
    checkpoints.save(first.state_dict(), info)
    checkpoints.wait()
    path = latest_checkpoint(Path(folder))
    assert path is not None
    then = open_step(resumed, node_size=2, model=small(), make_optimizer=adam, steps=14)
    checkpoints.load(then, path)
    checkpoints.close()
    rates = then.schedule.rates if isinstance(then, CyclingStep) else None
    losses = [train_step(then, number) for number in range(7, 14)]
    ends: list[Any] = [None] * dist.get_world_size()
    own = weights(then)
    if rates is None:
        # Statistics are each rank's own there.
        own = {name: own[name] for name, _ in then.model.named_parameters()}
    dist.all_gather_object(ends, own)
    apart = max(largest_difference(ends[0], other) for other in ends)
    return {"rates": rates, "losses": losses, "apart": apart}


@pytest.mark.parametrize(
    ("saved", "resumed", "rates"),
    [
        (f"{FIXED},sync-every=4", f"{FIXED},sync-every=auto", Rates(4, 1)),
        (f"{FIXED},sync-every=auto", f"{FIXED},sync-every=8,wait=2", Rates(8, 2)),
        (f"{FIXED},wire=bf16", f"{FIXED},wire=bf16,inside=sharded", Rates(4, 1)),
        # Ranks of a node are apart when this is saved; any strategy can go on from it.
        (f"{FIXED},sync-every=7,local-skip=5", "data", None),
    ],
)
def test_a_run_goes_on_in_another_form(saved, resumed, rates, run_ranks, tmp_path):
    for told in run_ranks(take_up, 4, saved, resumed, str(tmp_path)):
        assert told["rates"] == rates
        assert all(loss < 1.0 for loss in told["losses"])
        assert told["apart"] < 1e-6


class Scaled(nn.Module):
    """With a parameter that has no dims."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scale * self.layer(inputs)


def train_scaled() -> float:
    torch.manual_seed(5)
    step = open_step(
        "daso:warm-up=2,cool-down=4,review-every=3", model=Scaled(), make_optimizer=adam, steps=14
    )
    for number in range(14):
        train_step(step, number)
    return step.model.get_parameter("scale").item()


def test_numbers_without_dims_end_alike_too(run_ranks):
    first, second = run_ranks(train_scaled, 2)
    assert first == second != 1.0
