"""How a plan keeps parameters: less memory for the same training, whatever the model and the optimizer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from strategies.planned_runs import rank_on, sharing_all, whole_state
from strategies.random_plans import data_plan, random_plan
from syncline.errors import StrategyError
from syncline.graph.capture import capture_training
from syncline.graph.opgraph import OpGraph
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import Plan
from syncline.strategies.planned.strategy import make_step
from syncline.strategies.protocol import Job
from syncline.strategies.registry import parse_strategy
from syncline.strategies.under_way import WAIT_MARK
from syncline.workloads.batch import slice_rows

BATCH = 8
STEPS = 3


class Odd(nn.Module):
    """Has a tied, a frozen and an unused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.first = nn.Linear(16, 32)
        self.fixed = nn.Linear(32, 32).requires_grad_(False)
        self.idle = nn.Linear(16, 16)
        self.second = nn.Linear(32, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.fixed(torch.tanh(self.first(self.tokens(ids)))))))


def compute_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    ids = torch.randint(32, (BATCH, 9), generator=random)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def make_model() -> Odd:
    torch.manual_seed(0)
    return Odd()


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return replace(capture_training(make_model().train(), compute_loss, batch_of(0)), exported=None)


class OwnOptimizer(torch.optim.SGD):
    """Nobody knows that it works element by element."""


def make_job(optimizer: str, nodes: int = 1) -> Job:
    model = make_model()
    kind = OwnOptimizer if optimizer == "own" else getattr(torch.optim, optimizer)
    return Job(
        model=model,
        optimizer=kind(model.parameters(), lr=0.01 if optimizer == "AdamW" else 0.05),
        compute_loss=compute_loss,
        rank=rank_on(nodes),
        device=torch.device("cpu"),
        example=batch_of(0),
    )


def train(step: Any) -> list[float]:
    losses = []
    for number in range(STEPS):
        loss = step(slice_rows(batch_of(number), step.rows(BATCH)))
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses


def train_single(optimizer: str) -> tuple[list[float], dict[str, Tensor]]:
    step = parse_strategy("single").setup(make_job(optimizer))
    return train(step), whole_state(step)


def train_planned(
    optimizer: str, graph: OpGraph, *plans: Plan, nodes: int = 1, compiled: bool = False
) -> list[tuple[list[float], dict[str, Tensor]]]:
    found = []
    with sharing_all():
        for plan in plans:
            step = make_step(make_job(optimizer, nodes), graph, plan, bucket_mb=1, optimise=compiled)
            found.append((train(step), whole_state(step)))
    return found


def assert_same(given: tuple[list[float], dict[str, Tensor]], wanted: tuple[list[float], Any]) -> None:
    assert given[0] == pytest.approx(wanted[0], rel=1e-5)
    assert given[1].keys() == wanted[1].keys()
    for name, value in wanted[1].items():
        torch.testing.assert_close(given[1][name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "own"])
def test_every_way_of_keeping_trains_as_one_device(optimizer, graph, run_ranks):
    wanted = run_ranks(train_single, 1, optimizer)[0]
    untrained = dict(make_model().named_parameters())
    for name in ("idle.weight", "fixed.weight"):
        assert torch.equal(wanted[1][f"model.{name}"], untrained[name])
    plans = [data_plan(graph, nodes=1, per_node=2, keep=keep) for keep in Keeping]
    plans += [random_plan(graph, nodes=1, per_node=2, seed=seed) for seed in (3, 4)]
    for results in run_ranks(train_planned, 2, optimizer, graph, *plans):
        for result in results:
            assert_same(result, wanted)


def refused(graph: OpGraph, plan: Plan) -> str:
    with pytest.raises(StrategyError) as caught:
        make_step(make_job("Adafactor"), graph, plan, bucket_mb=1, optimise=False)
    return str(caught.value)


def test_an_optimizer_of_whole_parameters_needs_them_whole(graph, run_ranks):
    wanted = run_ranks(train_single, 1, "Adafactor")[0]
    kept = data_plan(graph, nodes=1, per_node=2, keep=Keeping.REPLICATED)
    assert_same(run_ranks(train_planned, 2, "Adafactor", graph, kept)[0][0], wanted)
    cut = random_plan(graph, nodes=1, per_node=2, seed=3)
    assert "Adafactor looks at whole parameters" in run_ranks(refused, 2, graph, cut)[0]


def bytes_of(graph: OpGraph, plan: Plan, nodes: int) -> dict[str, list[tuple[int, int]]]:
    """Of each trained parameter, the bytes of what is stored and of the leaf: before, and after two steps."""
    found: dict[str, list[tuple[int, int]]] = {}
    with sharing_all():
        step = make_step(make_job("SGD", nodes), graph, plan, bucket_mb=1, optimise=False)
        for number in range(3):
            for name, one in step._engine.placed.items():
                sizes = one.stored.untyped_storage().nbytes(), one.leaf.untyped_storage().nbytes()
                found.setdefault(name, []).append(sizes)
            step(slice_rows(batch_of(number), step.rows(BATCH)))
    return found


@pytest.mark.parametrize(
    ("keep", "stored", "lasting"),
    [
        (Keeping.REPLICATED, 1, True),
        (Keeping.STATE_SHARDED, 4, True),
        (Keeping.SHARDED, 4, False),
        (Keeping.SHARDED_IN_NODE, 2, False),
    ],
)
def test_memory_is_cut(keep, stored, lasting, graph, run_ranks):
    plan = data_plan(graph, nodes=2, per_node=2, keep=keep)
    whole = {name: one.numel() * 4 for name, one in make_model().named_parameters()}
    for sizes in run_ranks(bytes_of, 4, graph, plan, 2):
        for name in ("first.weight", "second.weight", "second.bias"):
            assert sizes[name] == [(whole[name] // stored, whole[name] if lasting else 0)] * 3, name
        assert sizes["fixed.weight"] == [(whole["fixed.weight"],) * 2] * 3


def profile_steps(graph: OpGraph, plan: Plan) -> set[str]:
    """What profiles of later steps record, each of which ends with gathers for the next under way."""
    with sharing_all():
        step = make_step(make_job("SGD"), graph, plan, bucket_mb=1, optimise=False)
        # The first step fetches what it needs itself.
        step(slice_rows(batch_of(0), step.rows(BATCH)))
        seen: set[str] = set()
        for number in (1, 2):
            with profile(activities=[ProfilerActivity.CPU]) as profiled:
                step(slice_rows(batch_of(number), step.rows(BATCH)))
            seen |= {event.key for event in profiled.key_averages()}
    return seen


def test_gathers_for_the_next_step_have_no_record_that_may_end_late(graph, run_ranks):
    """Torch would write the end of such a record into freed memory."""
    plan = data_plan(graph, nodes=1, per_node=2, keep=Keeping.STATE_SHARDED)
    for seen in run_ranks(profile_steps, 2, graph, plan):
        assert not {name for name in seen if "gather" in name.lower() and name.startswith(("gloo:", "c10d"))}
        assert WAIT_MARK in seen


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_program_is_the_same(graph, run_ranks):
    plan = random_plan(graph, nodes=1, per_node=2, seed=5)
    plain = run_ranks(train_planned, 2, "SGD", graph, plan)[0][0]
    compiled = run_ranks(train_compiled, 2, graph, plan)[0][0]
    assert_same(compiled, plain)


def train_compiled(graph: OpGraph, plan: Plan) -> list[tuple[list[float], dict[str, Tensor]]]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train_planned("SGD", graph, plan, compiled=True)
