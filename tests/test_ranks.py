"""The fixture that all multi-rank tests stand on."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from ranks import RanksFailedError


def total() -> float:
    value = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(value)
    return value.item()


def fail_on_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank one is broken")
    dist.barrier()


def sleep_on_one() -> None:
    if dist.get_rank() == 1:
        time.sleep(60)


def die_on_one() -> None:
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def crash_on_one() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def test_ranks_are_real(run_ranks):
    assert run_ranks(total, 2) == [3.0, 3.0]
    assert run_ranks(total, 4) == [10.0] * 4
    assert len(set(run_ranks(os.getpid, 2))) == 2


def test_tracebacks_of_all_ranks_are_joined(run_ranks):
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(fail_on_one, 2)
    assert "--- rank 1 ---" in str(caught.value)
    assert "ValueError: rank one is broken" in str(caught.value)
    assert run_ranks(total, 2) == [3.0, 3.0]


def test_a_rank_that_hangs_or_dies_ends_all(run_ranks):
    with pytest.raises(RanksFailedError, match="no answer within 1 s"):
        run_ranks(sleep_on_one, 2, timeout_s=1)
    with pytest.raises(RanksFailedError, match=r"the process died \(exit code 3\)"):
        run_ranks(die_on_one, 2)
    assert run_ranks(total, 2) == [3.0, 3.0]


def test_a_rank_that_crashes_says_where(run_ranks):
    with pytest.raises(RanksFailedError, match=r"(?s)the process died \(SIGSEGV\).*in crash_on_one"):
        run_ranks(crash_on_one, 2)


def sum_over_pairs(groups_before: int) -> float:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    for _ in range(groups_before):
        dist.new_group()
    pairs = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    own = pairs[dist.get_rank() // 2]
    assert isinstance(own, dist.ProcessGroup)
    mesh = DeviceMesh.from_group(own, "cpu", mesh_dim_names=("pair",))
    detached = distribute_tensor(torch.ones(4), mesh, [Shard(0)]).detach()
    assert isinstance(detached, DTensor)
    return detached.full_tensor().sum().item()


def test_a_job_does_not_meet_the_groups_of_another(run_ranks):
    for groups_before in (0, 2):
        assert run_ranks(sum_over_pairs, 4, groups_before) == [4.0] * 4
