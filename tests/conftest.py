"""Fixtures for all tests: real ranks, and failing tests that leave something behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import RankPool

# pytest, torch's compiler and OpenMP set variables of their own in this process.
_SET_BY_OTHERS = ("PYTEST_", "TORCHINDUCTOR_", "KMP_")


@pytest.fixture(scope="session")
def _rank_pools() -> Iterator[dict[int, RankPool]]:
    pools: dict[int, RankPool] = {}
    yield pools
    for pool in pools.values():
        pool.kill()


@pytest.fixture
def run_ranks(_rank_pools: dict[int, RankPool]) -> Callable[..., list[Any]]:
    """`run_ranks(function, world_size, *arguments)`: the function's results on real gloo ranks, by rank."""

    def run(
        function: Callable[..., Any], world_size: int, *arguments: Any, timeout_s: float = 120
    ) -> list[Any]:
        pool = _rank_pools.get(world_size)
        if pool is None or not pool.alive:
            pool = _rank_pools[world_size] = RankPool(world_size)
        return pool.run(function, arguments, timeout_s)

    return run


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """Fails a test that leaks environment variables, threads or a process group."""
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    yield
    changed = {key for key in environment.keys() ^ os.environ.keys() if not key.startswith(_SET_BY_OTHERS)}
    os.environ.clear()
    os.environ.update(environment)
    grouped = dist.is_initialized()
    if grouped:
        dist.destroy_process_group()
    assert not changed, f"the test left environment variables: {sorted(changed)}"
    assert not grouped, "the test left a process group"
    assert not (left := _still_running(threads)), f"the test left threads: {left}"


def _still_running(before: set[threading.Thread], patience_s: float = 2.0) -> list[str]:
    deadline = time.monotonic() + patience_s
    while True:
        left = [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
