"""The factor of the learning rate while nodes train by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nodes_of_ranks import node_rank, open_step, train_step
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.strategies.averaging.node_rate import NodeRate
from syncline.strategies.averaging.nodes import NodeGroups, find_nodes
from syncline.strategies.protocol import StepOptions

CYCLING = "daso:warm-up=0,cool-down=0,review-every=2"


def trained(kind: Any, signal: float, noise: float) -> torch.optim.Optimizer:
    """An optimizer that has seen gradients of a constant part and noise."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(2000))
    optimizer = kind([weight], lr=0.1)
    for _ in range(60):
        weight.grad = signal + noise * torch.randn(2000)
        optimizer.step()
    return optimizer


def factors(nodes: int) -> dict[str, float]:
    """By what the gradients are made of and the optimizer."""
    rank = node_rank(dist.get_world_size() // nodes)
    groups = NodeGroups(rank, find_nodes(rank, None))
    found = {}
    for name, kind, signal, noise, clips in (
        ("noise", torch.optim.AdamW, 0.0, 1.0, True),
        ("signal", torch.optim.Adam, 1.0, 0.0, True),
        ("both", torch.optim.Adam, 1.0, 1.0, True),
        ("sgd", torch.optim.SGD, 0.0, 1.0, True),
        ("not clipped", torch.optim.Adam, 0.0, 1.0, False),
    ):
        rate = NodeRate(None, clips=clips)
        rate.measure(trained(kind, signal, noise), groups, torch.device("cpu"))
        found[name] = rate.factor
    return found


def test_the_factor_follows_the_share_of_noise(run_ranks):
    for found in run_ranks(factors, 2, 2):
        assert found["noise"] == pytest.approx(2**0.5, rel=0.02)
        assert found["signal"] == pytest.approx(1.0, abs=0.01)
        # Half of the square is noise: 1 / sqrt(1 - 1/2 * 1/2).
        assert found["both"] == pytest.approx((4 / 3) ** 0.5, rel=0.02)
        assert found["sgd"] == found["not clipped"] == 1.0
    # All ranks of one node: there is nobody whose noise would average out.
    assert run_ranks(factors, 2, 1)[0]["noise"] == 1.0


def test_rate_and_decay_come_back():
    weight = nn.Parameter(torch.ones(1))
    for kind, decay in ((torch.optim.AdamW, 0.05), (torch.optim.Adam, 0.1), (torch.optim.SGD, 0.1)):
        optimizer = kind([weight], lr=0.1, weight_decay=0.1)
        with NodeRate(2.0, clips=False).applied(optimizer):
            assert optimizer.param_groups[0]["lr"] == 0.2
            assert optimizer.param_groups[0]["weight_decay"] == decay
        assert optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["weight_decay"] == 0.1


def followed(strategy: str) -> list[float]:
    """The factor after each step of a clipped training, and after going on from its state."""
    step, again = (
        open_step(
            strategy,
            make_optimizer=lambda model: torch.optim.AdamW(
                [p for p in model.parameters() if p.requires_grad], lr=0.01
            ),
            options=StepOptions(clip_norm=1.0),
            steps=30,
        )
        for _ in range(2)
    )
    assert isinstance(step, CyclingStep)
    assert isinstance(again, CyclingStep)
    seen = []
    for number in range(24):
        train_step(step, number)
        seen.append(step._rate.factor)
    again.load_state_dict(step.state_dict())
    return [*seen, again._rate.factor]


def test_a_run_follows_and_keeps_it(run_ranks):
    seen = run_ranks(followed, 2, CYCLING)[0]
    assert seen[0] == 1.0
    assert 1.0 < seen[-1] <= 2**0.5
    assert seen[-1] == seen[-2]
    assert set(run_ranks(followed, 2, f"{CYCLING},node-rate=1.2")[0]) == {1.2}
