"""DASO on real ranks: what it equals, when averages arrive, and how far it gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nodes_of_ranks import (
    Line,
    Small,
    adam,
    largest_difference,
    node_rank,
    open_step,
    sgd,
    squared_error,
    train_step,
    weights,
)
from syncline.cluster.rank import Rank
from syncline.errors import StrategyError
from syncline.strategies.protocol import Job
from syncline.strategies.registry import parse_strategy

BLOCKING = "daso:warm-up=1000,cool-down=0,review-every=5"
FREE = "daso:warm-up=0,cool-down=0,review-every=1000"


def train(strategy: str, node_size: int, steps: int, optimizer: Any) -> Any:
    step = open_step(strategy, node_size=node_size, make_optimizer=optimizer, steps=steps)
    for number in range(steps):
        train_step(step, number)
    return weights(step)


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (BLOCKING, sgd),
        (BLOCKING, adam),
        (f"{BLOCKING},inside=sharded", adam),
        # Averages weights, not gradients: equal for linear optimizers only.
        ("local-sgd:sync-every=1", sgd),
    ],
)
def test_blocking_equals_synchronous_training(strategy, optimizer, run_ranks):
    wanted = run_ranks(train, 1, "single", 1, 36, optimizer)[0]
    for given in run_ranks(train, 4, strategy, 2, 36, optimizer):
        assert largest_difference(given, wanted) <= 5e-6


def uneven_rank() -> Rank:
    """Nodes of three ranks and one."""
    index = dist.get_rank()
    local, size = (index, 3) if index < 3 else (0, 1)
    return Rank(index=index, world_size=4, local_index=local, local_world_size=size)


def train_uneven(strategy: str, steps: int) -> Any:
    torch.manual_seed(5)
    model = Small(norm=False)
    rank, device = uneven_rank(), torch.device("cpu")
    job = Job(
        model=model, optimizer=sgd(model), compute_loss=squared_error, rank=rank, device=device, steps=steps
    )
    step = parse_strategy(strategy).setup(job)
    for number in range(steps):
        train_step(step, number)
    return weights(step)


def test_nodes_of_different_sizes(run_ranks):
    wanted = run_ranks(train, 1, "single", 1, 8, sgd)[0]
    for given in run_ranks(train_uneven, 4, BLOCKING, 8):
        assert largest_difference(given, wanted) <= 5e-6
    # Cycling, nodes still end as one, near the same place.
    ends = run_ranks(train_uneven, 4, f"{FREE},sync-every=2", 8)
    assert largest_difference(ends[0], ends[3]) == 0
    assert 0 < largest_difference(ends[0], wanted) < 0.2


def refuse_uneven() -> str:
    with pytest.raises(StrategyError) as caught:
        train_uneven("daso:warm-up=0,review-every=5,inside=sharded", 1)
    return str(caught.value)


def test_cut_weights_need_even_nodes(run_ranks):
    assert "they have 3, 1 ranks" in run_ranks(refuse_uneven, 4)[0]


def stand_still(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def places(strategy: str, steps: int, starts: list[float], rate: float) -> list[float]:
    """Where a rank's weights are after each step when every gradient is 1."""
    step = open_step(
        strategy,
        model=Line(starts[dist.get_rank()]),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=rate),
        compute_loss=lambda model, batch: model(batch[0]),
    )
    seen = []
    for number in range(steps):
        train_step(step, number)
        seen.append(next(step.model.parameters())[0].item())
    return seen


@pytest.mark.parametrize("sync_every", [2, 4, 5])
def test_an_average_arrives_after_exactly_so_many_steps(sync_every, run_ranks):
    for wait in range(1, sync_every + 1):
        text = f"{FREE},merge=delta,sync-every={sync_every},wait={wait}"
        first, second = run_ranks(places, 2, text, wait + 3, [0.0, 1.0], 0.0)
        # Sent after the first step, merged after step 1 + wait.
        assert first == [0.0] * wait + [0.5] * 3
        assert second == [1.0] * wait + [0.5] * 3


@pytest.mark.parametrize(("wait", "merged"), [(1, 0.25), (2, 1 / 6), (3, 0.125)])
def test_the_published_merge(wait, merged, run_ranks):
    text = f"{FREE},merge=paper,sync-every=4,wait={wait}"
    first, second = run_ranks(places, 2, text, wait + 1, [0.0, 1.0], 0.0)
    assert first[wait - 1 :] == pytest.approx([0.0, merged])
    assert second[wait - 1 :] == pytest.approx([1.0, 1 - merged])


@pytest.mark.parametrize(
    ("merge", "sync_every", "wait", "wanted"),
    [
        ("delta", 4, 1, 1.0),
        ("delta", 8, 2, 1.0),
        ("delta", 2, 2, 1.0),
        ("delta", 1, 1, 1.0),
        # (B - W P / (2 W + P)) / B for P = 2 nodes, and (2 + P) / (2 + 2 P) when every step sends.
        ("paper", 4, 1, (4 - 2 / 4) / 4),
        ("paper", 8, 2, (8 - 4 / 6) / 8),
        ("paper", 2, 1, (2 - 2 / 4) / 2),
        ("paper", 1, 1, 4 / 6),
    ],
)
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_progress_with_a_constant_gradient(merge, sync_every, wait, wanted, wire, run_ranks):
    rate, cycles = 1e-4, 12
    text = f"{FREE},merge={merge},sync-every={sync_every},wait={wait},wire={wire}"
    steps = sync_every * 2 * cycles
    ranks = run_ranks(places, 2, text, steps, [1.0, 1.0], rate)
    mean = [sum(at) / 2 for at in zip(*ranks, strict=True)]
    passed = mean[-1 - sync_every * cycles] - mean[-1]
    assert passed / (sync_every * cycles * rate) == pytest.approx(wanted, abs=0.01)


def statistics(strategy: str) -> Any:
    """The statistics of a batch norm after training on rows that differ by node."""
    torch.manual_seed(5)
    step = open_step(strategy, node_size=2, model=Small(), make_optimizer=stand_still)
    seen = []
    for _ in range(6):
        step((torch.randn(4, 12) + node_rank(2).node, torch.zeros(4, 1)))
        seen.append(step.model.state_dict()["norm.running_mean"].clone())
    return seen


def test_statistics_of_batch_norms_are_averaged(run_ranks):
    for first, other in zip(*run_ranks(statistics, 4, BLOCKING)[::3], strict=True):
        torch.testing.assert_close(first, other)
    apart = run_ranks(statistics, 4, f"{FREE},sync-every=6,wait=6")
    near = run_ranks(statistics, 4, f"{FREE},sync-every=1")
    gap = (apart[0][-1] - apart[3][-1]).abs().mean()
    assert (near[0][-1] - near[3][-1]).abs().mean() < 0.7 * gap


def train_apart(strategy: str) -> Any:
    """Ranks of one node that average only now and then, with gradients that differ."""
    step: Any = open_step(
        strategy,
        node_size=2,
        model=Line(0.0),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        compute_loss=lambda model, batch: -model(batch[0]) * (dist.get_rank() % 2),
        steps=9,
    )
    seen = []
    for number in range(9):
        train_step(step, number)
        seen.append(next(step.model.parameters())[0].item())
    return seen


def test_no_rank_works_in_vain_when_a_node_skips(run_ranks):
    # One rank of each node moves by 1 in every step, the other stands: their mean moves by a half.
    seen = run_ranks(train_apart, 2, f"{FREE},sync-every=4,local-skip=2,merge=delta")
    assert seen[0][1] != seen[1][1]
    assert seen[0][-1] == seen[1][-1] == pytest.approx(9 / 2)


def uneven_slope(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss of 1 whatever the weights are, with a slope on every second rank."""
    pulled = model(batch[0]) * (dist.get_rank() % 2)
    return 1.0 + pulled - pulled.detach()


def spread_in_node(strategy: str) -> Any:
    """How far the ranks of a node are apart after each step, while a flat loss changes the rates."""
    step: Any = open_step(
        strategy,
        node_size=2,
        model=Line(0.0),
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        compute_loss=uneven_slope,
    )
    seen = []
    for number in range(30):
        train_step(step, number)
        places = [0.0] * 4
        dist.all_gather_object(places, next(step.model.parameters())[0].item())
        seen.append((step.schedule.rates.local_skip, abs(places[0] - places[1])))
    return seen


def test_ranks_of_a_node_are_one_again_when_skipping_ends(run_ranks):
    options = "warm-up=0,cool-down=0,review-every=2,sync-every=7,wait=2,local-skip=5,reset=8"
    seen = run_ranks(spread_in_node, 4, f"daso:{options}")[0]
    assert {skip for skip, _ in seen} == {5, 2, 1}
    assert max(spread for skip, spread in seen if skip > 1) > 0
    assert [spread for skip, spread in seen if skip == 1] == [0.0] * sum(skip == 1 for skip, _ in seen)


def train_short(strategy: str) -> str:
    with pytest.raises(StrategyError) as caught:
        open_step(strategy, steps=None)
    return str(caught.value)


def test_a_share_of_an_unknown_length_is_refused(run_ranks):
    assert "how long the run is was not told" in run_ranks(train_short, 2, "daso")[0]
