"""Agreeing on losses and wishes while the next steps run."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from syncline.strategies.under_way import WAIT_MARK
from syncline.training.signals import Outcome, Signals

LATE_S = 0.3


def post_steps(lead: int) -> tuple[list[list[Outcome]], float]:
    """What each rank reads after each of three steps, of which the second rank makes the last one late."""
    signals = Signals(torch.device("cpu"), lead=lead)
    rank, seen = dist.get_rank(), []
    for step in (1, 2, 3):
        if step == 3 and rank == 1:
            time.sleep(LATE_S)
        signals.post(step, torch.tensor(float(step + rank)), stop=step == 2 and rank == 1)
        seen.append(list(signals.read()))
    seen.append(list(signals.read(everything=True)))
    return seen, signals.waited_s


@pytest.mark.parametrize(("lead", "read"), [(0, [[], [1], [2], [3]]), (2, [[], [], [], [1, 2, 3]])])
def test_outcomes_come_late_and_alike(lead, read, run_ranks):
    (first, waited_s), (second, _) = run_ranks(post_steps, 2, lead)
    assert first == second
    assert [[outcome.step for outcome in outcomes] for outcomes in first] == read
    outcomes = [outcome for given in first for outcome in given]
    assert [outcome.loss for outcome in outcomes] == [1.5, 2.5, 3.5]
    assert [outcome.stop for outcome in outcomes] == [False, True, False]
    # The first rank stands still for the second's last word, and that is counted.
    assert waited_s > LATE_S / 2


def profile_posts() -> tuple[set[str], set[str]]:
    """What profiles record of a post, and of reading what was posted when none was on."""
    signals = Signals(torch.device("cpu"))
    kinds = [ProfilerActivity.CPU]
    with profile(activities=kinds) as posting:
        signals.post(1, torch.tensor(1.0), stop=False)
    with profile(activities=kinds) as reading:
        assert [outcome.loss for outcome in signals.read(everything=True)] == [1.0]
    posted, read = ({event.key for event in each.key_averages()} for each in (posting, reading))
    return posted, read


def test_no_profile_has_a_record_that_may_end_after_it(run_ranks):
    """Torch would write the end of such a record into freed memory."""
    for posted, read in run_ranks(profile_posts, 2):
        assert not {name for name in posted | read if name.startswith("gloo:")}
        assert WAIT_MARK in read
