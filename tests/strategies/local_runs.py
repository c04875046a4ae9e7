"""Trainings with the strategy `local`, on ranks and in one process, for tests to compare."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from strategies.test_conformance import BATCH, Course, prepare, whole_weights
from syncline.strategies.local.block import Rule
from syncline.strategies.local.step import LocalStep

MLP = "mlp:size=tiny,layers=6"
GPT = "gpt2-tiny:layers=4,width=32,heads=2,seq=16,positions=16,dropout=0.1"
UNTIED = "llama-7b:size=tiny,layers=4,width=32,heads=4,hidden=64,seq=16"


@contextmanager
def sleeping(seed: int) -> Iterator[None]:
    """Within, every stage sleeps for random times before it runs forward and before it learns."""
    naps = random.Random(seed * 1000 + dist.get_rank())

    def napping(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            time.sleep(naps.random() * 0.02)
            return function(*args, **kwargs)

        return run

    with (
        patch.object(Rule, "forward", napping(Rule.forward)),
        patch.object(Rule, "learn", napping(Rule.learn)),
    ):
        yield


def step_of(course: Course) -> tuple[LocalStep, Any]:
    torch.manual_seed(7)
    step, batches = prepare(course)
    assert isinstance(step, LocalStep)
    return step, batches


def train_local(course: Course, sleep: int | None = None) -> dict[str, Tensor]:
    """The weights after a training, evaluated and saved in between."""
    step, batches = step_of(course)
    if sleep is None:
        _train(step, batches, course.steps)
    else:
        with sleeping(sleep):
            _train(step, batches, course.steps)
    return whole_weights(step) | heads_of(step)


def _train(step: LocalStep, batches: Any, steps: int) -> None:
    for number in range(steps):
        step(batches.rows(number, step.rows(BATCH)))
        if number == 1:
            step.evaluate(batches.rows(0, step.rows(BATCH)))
            step.state_dict()


def heads_of(step: LocalStep) -> dict[str, Tensor]:
    """The weights of all heads, whichever rank has them."""
    own = {
        f"{block.name} {name}": weight.detach().clone()
        for block in step.blocks
        if block.head is not None
        for name, weight in block.head.named_parameters()
    }
    told: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return {name: weight for part in told for name, weight in part.items()}


def assert_identical(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert given.keys() == wanted.keys()
    assert [name for name, weight in wanted.items() if not torch.equal(given[name], weight)] == []
