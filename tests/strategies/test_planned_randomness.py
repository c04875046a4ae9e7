"""Random numbers under plans: copies of a shard draw the same, shards different ones, runs repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strategies.planned_runs import Training, graph_of, rank_on, step_by, train, whole_state
from strategies.random_plans import as_plan, random_plan
from syncline.cluster.machine import machines_like_this
from syncline.graph.capture import capture_training
from syncline.graph.opgraph import OpGraph
from syncline.planning.axes import search_axes
from syncline.planning.plan import OpSharding, Plan
from syncline.strategies.planned.strategy import make_step
from syncline.strategies.protocol import Job, StepOptions

ROWS, COLUMNS = 8, 64
DROPOUT = Training("gpt2-tiny:layers=1,seq=8,dropout=0.2", steps=3)


class Masked(nn.Module):
    """The gradient of its weight is the mask that was drawn, doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ROWS, COLUMNS))
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.drop(inputs + self.weight)


def compute_loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0]).sum()


BATCH = (torch.zeros(ROWS, COLUMNS), torch.zeros(ROWS))


def masks(graph: OpGraph, plan: Plan, seeds: list[int], accumulate: int = 1) -> list[Tensor]:
    """The masks of steps, before each of which the generator is seeded."""
    model = Masked()
    job = Job(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5),
        compute_loss=compute_loss,
        rank=rank_on(1),
        device=torch.device("cpu"),
        options=StepOptions(accumulate=accumulate),
        example=BATCH,
    )
    step = make_step(job, graph, plan, bucket_mb=1, optimise=False)
    found, before = [], torch.zeros(ROWS, COLUMNS)
    for seed in seeds:
        torch.manual_seed(seed + 1000 * job.rank.index)
        state = torch.get_rng_state()
        step((BATCH[0][step.rows(ROWS)], BATCH[1][step.rows(ROWS)]))
        assert torch.equal(torch.get_rng_state(), state)
        momentum = whole_state(step, "momentum_buffer")["optimizer.weight.momentum_buffer"]
        found.append((momentum - 0.5 * before) / 2)
        before = momentum
    return found


def all_masks(graph: OpGraph, plan: Plan) -> dict[str, list[Tensor]]:
    return {
        "run": masks(graph, plan, [1, 2]),
        "again": masks(graph, plan, [1, 2]),
        "resumed": masks(graph, plan, [2]),
        "other": masks(graph, plan, [3]),
        "unseeded": masks(graph, plan, [1, 1]),
    }


@pytest.mark.parametrize("is_split", [True, False])
def test_shards_draw_their_own_and_copies_the_same(is_split, run_ranks):
    graph = replace(capture_training(Masked().train(), compute_loss, BATCH), exported=None)
    axes = search_axes(machines_like_this("test", nodes=1, per_node=4))
    name = axes.axes[0].name
    ops = {
        op.name: OpSharding(
            split={op.space.dims[0].name: (name,)} if is_split and "dropout" in op.target else {}
        )
        for op in graph.ops
    }
    assert sum("dropout" in op.target for op in graph.ops) == 1
    by_rank = run_ranks(all_masks, 4, graph, as_plan(graph, axes, ops, {}))
    for found in by_rank:
        for kind, wanted in by_rank[0].items():
            assert all(map(torch.equal, found[kind], wanted)), kind
    found = by_rank[0]
    first, second = found["run"]
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert 0.3 < first.mean() < 0.7
    assert torch.equal(first[: ROWS // 2], first[ROWS // 2 :]) is False
    assert all(map(torch.equal, found["again"], found["run"]))
    assert torch.equal(found["resumed"][0], second)
    different = [first, second, found["other"][0], found["unseeded"][1]]
    assert all(not torch.equal(a, b) for i, a in enumerate(different) for b in different[:i])


def losses_by(graph: OpGraph, *plans: Plan) -> list[list[float]]:
    found = []
    for plan in plans:
        torch.manual_seed(5)
        found.append(train(step_by(plan, graph, DROPOUT), DROPOUT))
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_recomputed_blocks_draw_the_same_again(seed, run_ranks):
    graph = graph_of(DROPOUT.model)
    plan = random_plan(graph, nodes=1, per_node=2, seed=seed)
    plain, recomputed, again = run_ranks(
        losses_by, 2, graph, replace(plan, recompute=False), replace(plan, recompute=True), plan
    )[0]
    assert len(set(plain)) == DROPOUT.steps
    assert plain == recomputed == again
