"""Sums that arrive before they are due: a node shares them while it makes the step that is left."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nodes_of_ranks import adam, largest_difference, open_step, train_step, weights
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.strategies.averaging.schedule import PIECES, CycleSchedule, Rates

STEPS = 24


def train(wait: int, exchange_steps: float | None, options: str = "") -> tuple[Any, list[int], int]:
    """The weights after some steps, the steps after which sums were on their way in the node, and merges."""
    step = open_step(
        f"daso:warm-up=0,cool-down=0,review-every=1000,sync-every=4,wait={wait}{options}",
        node_size=2,
        make_optimizer=adam,
        steps=STEPS,
    )
    assert isinstance(step, CyclingStep)
    step.schedule.exchange_steps = exchange_steps
    shared = []
    for number in range(STEPS):
        train_step(step, number)
        if (under_way := step.weights.under_way) is not None and under_way.pending.shares:
            shared.append(step.done)
    return weights(step), shared, step.weights.exchange.times.exchanges


@pytest.mark.parametrize("options", ["", ",wire=bf16", ",merge=paper"])
def test_sharing_early_changes_nothing_but_the_time(options, run_ranks):
    late = run_ranks(train, 4, 3, None, options)
    early = run_ranks(train, 4, 3, 1.5, options)
    # Sent after steps 1, 5, 9, ..., and due three steps later.
    assert [shared for _, shared, _ in early] == [[3, 7, 11, 15, 19, 23]] * 4
    assert [shared for _, shared, _ in late] == [[]] * 4
    assert {merges for _, _, merges in (*late, *early)} == {6}
    for (one, _, _), (other, _, _) in zip(late, early, strict=True):
        assert largest_difference(one, other) == 0


def test_what_needs_its_whole_wait_is_shared_when_it_is_due(run_ranks):
    for wait, exchange_steps in ((1, 0.1), (2, 1.1), (3, 2.5)):
        assert run_ranks(train, 4, wait, exchange_steps)[0][1] == []


def test_a_schedule_knows_what_arrives_in_time():
    schedule = CycleSchedule(rates=Rates(4, 3), reset=8)
    assert not schedule.arrives_within(3, PIECES)
    schedule.review(1.0, exchange_steps=2.0)
    schedule.review(1.0)
    assert schedule.arrives_within(2, PIECES)
    assert not schedule.arrives_within(1, PIECES)
    assert schedule.arrives_within(1, PIECES // 2)
    assert CycleSchedule.of_state(schedule.state()) == schedule


def checkpoint_while_sharing() -> torch.Tensor:
    step = open_step(
        "daso:warm-up=0,cool-down=0,review-every=1000,sync-every=4,wait=3", node_size=2, make_optimizer=adam
    )
    assert isinstance(step, CyclingStep)
    step.schedule.exchange_steps = 1.0
    for number in range(3):
        train_step(step, number)
    under_way = step.weights.under_way
    assert under_way is not None
    assert under_way.pending.shares
    step.weights.state()
    assert not under_way.pending.shares
    assert under_way.pending.told is not None
    return under_way.pending.told[0]


def test_a_checkpoint_waits_for_what_is_being_shared(run_ranks):
    first, second, *_ = run_ranks(checkpoint_while_sharing, 4)
    assert torch.equal(first, second)


def work_on_an_exchange(node_size: int, options: str) -> float:
    """In steps, where each step takes 1000 s by the clock, and so does sending and merging.

    What it really stands still for, which is taken off, is little beside that.
    """
    clocks = [SimpleNamespace(perf_counter=count(step=1000).__next__) for _ in range(2)]
    averaging = "syncline.strategies.averaging"
    with patch(f"{averaging}.cycling.time", clocks[0]), patch(f"{averaging}.review.time", clocks[1]):
        step = open_step(
            f"daso:warm-up=0,cool-down=0,review-every=1000,sync-every=2,wait=1{options}",
            node_size=node_size,
            make_optimizer=adam,
        )
        assert isinstance(step, CyclingStep)
        for number in range(12):
            train_step(step, number)
    _, _, _, _, worked, shares = step._review.rank_tensor().tolist()
    return worked / shares


@pytest.mark.parametrize(
    ("ranks", "node_size", "options", "steps"),
    [(2, 1, "", 2), (4, 2, "", 4), (4, 2, ",inside=sharded", 2)],
)
def test_ranks_that_wait_for_the_one_that_works_count_too(ranks, node_size, options, steps, run_ranks):
    for told in run_ranks(work_on_an_exchange, ranks, node_size, options):
        assert told == pytest.approx(steps, rel=0.1)
