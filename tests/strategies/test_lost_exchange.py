"""An exchange whose peer is gone: its work is completed too, but what it left in memory is no average."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from nodes_of_ranks import largest_difference, open_step, train_step, weights
from ranks import part
from syncline.cluster.process_group import is_lost_peer
from syncline.strategies.averaging.cycling import CyclingStep

WAIT = 8


@contextmanager
def losing_a_peer() -> Iterator[None]:
    with pytest.raises(RuntimeError) as caught:
        yield
    assert is_lost_peer(caught.value)


def lose_the_other_node(wire: str) -> float | None:
    """How far the weights are, after the loss was noticed, from those before; on the node that lives."""
    step = open_step(
        f"daso:warm-up=0,cool-down=0,review-every=1000,sync-every={WAIT},wait={WAIT},wire={wire}",
        node_size=1,
    )
    assert isinstance(step, CyclingStep)
    if dist.get_rank() == 1:
        train_step(step, 0)
        step.release()
        part()
        return None
    train_step(step, 0)
    # A second exchange, which the other node never comes to.
    step.weights.merge(step.done)
    step.weights.start(step.done, WAIT)
    under_way = step.weights.under_way
    assert under_way is not None
    end = time.monotonic() + 30
    while not under_way.pending.has_arrived:
        assert time.monotonic() < end
        time.sleep(0.01)
    before = weights(step)
    with losing_a_peer():
        step.weights.merge(step.done)
    part()
    return largest_difference(before, weights(step))


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_a_broken_sum_is_never_merged(wire, run_ranks):
    assert run_ranks(lose_the_other_node, 2, wire)[0] == 0
