"""Leaving a group in which something is under way that will never end by itself."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from ranks import default_store, part
from syncline.cluster.process_group import break_off_all, is_lost_peer, leave_group

PATIENCE = timedelta(seconds=30)
"""Half of what a collective may take in these tests."""


def leave_while_others_are_awaited() -> list[str]:
    """How collectives ended that others of the group never came to."""
    group = dist.new_group([0, 1])
    assert isinstance(group, dist.ProcessGroup)
    dist.barrier(group)
    store = dist.PrefixStore("leaving", default_store())
    if dist.get_rank() == 1:
        # In the group until the other has left it.
        store.wait(["left"], PATIENCE)
        return []
    works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(4)]
    leave_group(group)
    del group
    errors = []
    for work in works:
        assert work is not None
        with pytest.raises(RuntimeError) as caught:
            work.wait()
        assert is_lost_peer(caught.value)
        errors.append(str(caught.value))
    store.set("left", "")
    return errors


def test_who_leaves_waits_for_nobody(run_ranks):
    errors = run_ranks(leave_while_others_are_awaited, 2)[0]
    assert len(errors) == 4
    assert not any("60000ms" in error for error in errors)


def be_told_while_waiting() -> str:
    """What a rank sees that waits for another when a thread beside it breaks off all groups."""
    group = dist.new_group([0, 1])
    assert isinstance(group, dist.ProcessGroup)
    dist.barrier(group)
    if dist.get_rank() == 1:
        part()
        return ""
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work is not None
    break_off_all()
    with pytest.raises(RuntimeError) as caught:
        work.wait()
    assert is_lost_peer(caught.value)
    with pytest.raises(RuntimeError):
        dist.barrier()
    part()
    return str(caught.value)


def test_a_rank_is_freed_from_all_groups(run_ranks):
    assert "60000ms" not in run_ranks(be_told_while_waiting, 2)[0]
