"""Under a plan, large weights are made part by part: the same weights as ever, and the same training."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strategies.random_plans import random_plan
from syncline.cluster.rank import current_rank
from syncline.strategies.planned.strategy import capture_job, make_step
from syncline.strategies.protocol import Job, TrainStep
from syncline.training.config import TrainConfig
from syncline.training.preflight import resolve_workload
from syncline.training.run import prepare_run
from syncline.workloads.deferred.building import Built, build_deferred
from syncline.workloads.load import LoadedWorkload, load_workload
from syncline.workloads.models.registry import parse_model
from syncline.workloads.randomness import seeded

SEED = 3
ROWS = 8


class Odd(nn.Module):
    """Has weights that are frozen, not used at all, strided when split, and used twice."""

    def __init__(self) -> None:
        super().__init__()
        rnnlm = parse_model("rnnlm:size=tiny,layers=1,width=32").build()
        self.tokens = nn.Embedding(64, 32)
        self.lstm = rnnlm.get_submodule("blocks.0")
        self.frozen = nn.Linear(32, 1280)
        self.back = nn.Linear(1280, 32)
        self.unused = nn.Linear(48, 64)
        self.frozen.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.lstm(self.tokens(tokens))
        return F.linear(self.back(self.frozen(x).relu()), self.tokens.weight)


def compute_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def make_job(*, deferring: bool) -> Job:
    if deferring:
        built = build_deferred(Odd, lambda model: model, seed=SEED, large=1 << 10)
        assert {"tokens.weight", "lstm.hidden_weight", "frozen.weight", "unused.weight"} <= {*built.weights}
    else:
        with seeded(SEED):
            built = Built(Odd())
    model = built.made
    flat = [one for one in model.parameters() if one.ndim == 1]
    groups = [{"params": [one for one in model.parameters() if one.ndim > 1]}, {"params": flat, "lr": 0.1}]
    return Job(
        model=model,
        optimizer=torch.optim.AdamW(groups, lr=0.01),
        compute_loss=compute_loss,
        rank=current_rank(),
        device=torch.device("cpu"),
        example=(torch.zeros(ROWS, 6, dtype=torch.int64), torch.zeros(ROWS, 6, dtype=torch.int64)),
        deferred=built.weights,
    )


def whole_state(step: TrainStep) -> dict[str, Tensor]:
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
        for name, value in step.state_dict().items()
        if name.startswith("model.")
    }


def run_plan(
    seed: int, per_node: int, cuts: set[str], *, deferring: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    job = make_job(deferring=deferring)
    graph = capture_job(job, "planned")
    plan = random_plan(graph, nodes=1, per_node=per_node, seed=seed)
    step = make_step(job, graph, plan, bucket_mb=1, optimise=False)
    assert not any(one.is_meta for one in job.model.parameters())
    for one in step._engine.placed.values():
        cuts |= {"strided"} if one.placing.is_strided else {"shared"} if one.placing.share else set()
    first = whole_state(step)
    tokens = torch.arange(ROWS * 6).view(ROWS, 6) % 64
    for _ in range(2):
        step((tokens[step.rows(ROWS)], tokens.flip(0)[step.rows(ROWS)]))
    return first, whole_state(step)


def compare_builds(seeds: tuple[int, ...], per_node: int) -> None:
    with seeded(SEED):
        wanted = {f"model.{name}": value for name, value in Odd().state_dict().items()}
    cuts: set[str] = set()
    for seed in seeds:
        first, then = run_plan(seed, per_node, cuts, deferring=True)
        assert first.keys() == wanted.keys()
        assert all(torch.equal(first[name], wanted[name]) for name in wanted)
        _, ordinary = run_plan(seed, per_node, cuts, deferring=False)
        assert all(torch.equal(then[name], ordinary[name]) for name in ordinary)
        changed = {name for name in first if not torch.equal(first[name], then[name])}
        assert {"model.tokens.weight", "model.lstm.hidden_weight"} <= changed
        assert "model.frozen.weight" not in changed
    assert cuts == {"strided", "shared"}


@pytest.mark.parametrize(("ranks", "seeds"), [(2, (1, 9)), (4, (1,))])
def test_parts_are_those_of_the_whole_weights(ranks, seeds, run_ranks):
    run_ranks(compare_builds, ranks, seeds, ranks)


def first_weights(strategy: str) -> dict[str, Tensor]:
    """Those of a run before its first step, on ranks that must not build the whole model."""
    config = TrainConfig(
        model="mlp:layers=1,width=1024,features=1040", strategy=strategy, batch=ROWS, data="synthetic"
    )
    keep = LoadedWorkload.build_model
    if strategy != "single":
        LoadedWorkload.build_model = functools.partial(pytest.fail, "builds all weights")  # type: ignore[method-assign]
    try:
        run = prepare_run(config, current_rank(), torch.device("cpu"))
    finally:
        LoadedWorkload.build_model = keep  # type: ignore[method-assign]
    run.batches.close()
    return whole_state(run.step)


@pytest.mark.parametrize("strategy", ["planned", "tensor"])
def test_runs_start_from_the_weights_of_one_device(strategy, run_ranks):
    wanted = run_ranks(first_weights, 1, "single")[0]
    for weights in run_ranks(first_weights, 2, strategy):
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def test_a_model_that_fits_in_parts_only_is_not_refused(monkeypatch):
    model = "mlp:layers=1,width=1024,features=1040"
    size = sum(one.nbytes for one in load_workload(model).build_model("meta").parameters())
    monkeypatch.setattr("syncline.training.preflight.machine_memory_bytes", lambda field: size * 1.5)
    with pytest.raises(Exception, match="each of 2 ranks"):
        resolve_workload(TrainConfig(model=model, strategy="data"), 2)
    resolve_workload(TrainConfig(model=model, strategy="planned"), 2)
    monkeypatch.setattr("syncline.training.preflight.machine_memory_bytes", lambda field: size * 0.5)
    with pytest.raises(Exception, match="2 ranks together"):
        resolve_workload(TrainConfig(model=model, strategy="planned"), 2)
