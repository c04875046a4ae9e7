"""What a planned step holds goes with it: process groups, and the threads that serve them."""

from __future__ import annotations

import gc

import pytest
import torch.distributed as dist

from strategies.test_conformance import GPT, Course, prepare, train_once
from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.ranks import LiveMesh


def train_and_let_go(strategy: str) -> tuple[int, int]:
    """How many parameters and meshes of plans there are before and after their user lets go of them."""
    step, batches = prepare(Course(strategy, GPT))
    train_once(step, batches, 0)
    # The others may still need this rank's connections.
    dist.barrier()
    held = count_held()
    del step, batches
    gc.collect()
    return held, count_held()


def count_held() -> int:
    return sum(type(one) in (PlacedParameter, LiveMesh) for one in gc.get_objects())


@pytest.mark.parametrize("strategy", ["planned", "tensor"])
def test_nothing_of_a_plan_outlives_its_step(strategy, run_ranks):
    for held, left in run_ranks(train_and_let_go, 2, strategy):
        assert held > 10
        assert left == 0
