"""Profiles that end while collectives are under way: torch would write the end of their records into freed
memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from nodes_of_ranks import ROWS, open_step, rows
from strategies.local_runs import MLP, UNTIED, step_of
from strategies.test_conformance import BATCH, Course
from syncline.strategies.protocol import TrainStep
from syncline.strategies.under_way import WAIT_MARK
from syncline.workloads.workload import Batch

STEPS = 12


def profile_averaging(strategy: str) -> set[str]:
    step = open_step(strategy, steps=STEPS)
    part = step.rows(ROWS)

    def batch_of(number: int) -> Batch:
        inputs, targets = rows(number)
        return inputs[part], targets[part]

    return profiled_steps(step, batch_of)


def profile_stages(course: Course) -> set[str]:
    step, batches = step_of(course)
    return profiled_steps(step, lambda number: batches.rows(number, step.rows(BATCH)))


def profiled_steps(step: TrainStep, batch_of: Callable[[int], Batch]) -> set[str]:
    """What profiles of every other step record."""
    seen: set[str] = set()
    for number in range(0, STEPS, 2):
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            step(batch_of(number))
        seen |= {event.key for event in profiled.key_averages()}
        assert step(batch_of(number + 1)).isfinite()
    dist.barrier()
    return seen


def communication(seen: set[str]) -> set[str]:
    return {name for name in seen if name.startswith("gloo:") or "send" in name or "recv" in name}


@pytest.mark.parametrize(
    "strategy",
    [
        "daso:warm-up=0,cool-down=0,review-every=2,sync-every=3,wait=2",
        "daso:warm-up=3,cool-down=3,review-every=1,sync-every=auto",
        "local-sgd:sync-every=1",
        "diloco:sync-every=4,fragments=2,delay=1",
    ],
)
def test_exchanges_have_no_record_that_may_end_late(strategy, run_ranks):
    for seen in run_ranks(profile_averaging, 2, strategy):
        assert not communication(seen)
        assert any(name.startswith("aten::") for name in seen)


@pytest.mark.parametrize(
    "course",
    [Course("local:queue=3", MLP), Course("local:queue=3,head=readout", UNTIED)],
    ids=["queues", "refreshed heads"],
)
def test_messages_between_stages_have_no_record_that_may_end_late(course, run_ranks):
    for seen in run_ranks(profile_stages, 2, course):
        assert not communication(seen)
        assert WAIT_MARK in seen
