"""Any legal plan is exact: losses and gradients as on one device, whatever is split over what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from strategies.planned_runs import Training, graph_of, make_job, sharing_all, step_by, train, whole_state
from strategies.random_plans import random_plan
from syncline.graph.opgraph import OpGraph
from syncline.planning.plan import Plan
from syncline.strategies.protocol import TrainStep
from syncline.strategies.registry import parse_strategy
from syncline.workloads.models.registry import BUILTIN_MODELS

# Rates at which ten steps do not amplify rounding: batch norm over few values does so chaotically.
RATES = {
    "mlp:size=tiny": 1e-2,
    "alexnet:size=tiny": 1e-3,
    "vgg16:size=tiny,width=4": 1e-3,
    "inception3:size=tiny,image=20": 1e-5,
    "resnet18:size=tiny,image=8": 1e-5,
    "resnet50:size=tiny,image=8": 1e-5,
    "resnet110:size=tiny,depth=8,image=8": 1e-4,
    "rnnlm:size=tiny,seq=8,width=32": 1e-2,
    "transformer:size=tiny,layers=1,seq=8": 1e-2,
    "gpt2-tiny:layers=2,seq=16": 1e-2,
    "gpt2-small:size=tiny,layers=1,width=48,heads=6,seq=12,vocab=258": 1e-2,
    "gpt2-medium:size=tiny,layers=1,width=64,heads=8,seq=8": 1e-2,
    "llama-7b:size=tiny,layers=1,seq=16": 1e-2,
    "llama-70b:size=tiny,layers=1,seq=16": 1e-2,
}
SEEDS = st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=5, unique=True)
"""Several plans at a time: starting ranks and their groups takes longer than training."""

Traces = tuple[list[float], dict[str, Tensor]]
"""The losses of ten steps, and the gradients of the first."""


def test_every_model_is_tried():
    assert {model.partition(":")[0] for model in RATES} == BUILTIN_MODELS.keys()


def trace(step: TrainStep, training: Training) -> Traces:
    first = train(step, replace(training, steps=1))
    # Momentum after one step is the gradient.
    gradients = whole_state(step, "momentum_buffer")
    return first + train(step, replace(training, steps=9), start=1), gradients


def train_single(model: str) -> Traces:
    training = Training(model, 10, RATES[model])
    return trace(parse_strategy("single").setup(make_job(training)), training)


def train_by_plans(model: str, nodes: int, graph: OpGraph, plans: tuple[Plan, ...]) -> list[Traces]:
    training = Training(model, 10, RATES[model], nodes=nodes)
    with sharing_all():
        return [trace(step_by(plan, graph, training), training) for plan in plans]


@pytest.fixture(scope="module")
def references() -> dict[str, Traces]:
    return {}


def assert_same_gradients(given: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    assert given.keys() == wanted.keys()
    # Some gradients are zero but for rounding (biases of attention's keys): the whole is their measure.
    total = sum(float(one.square().sum()) for one in wanted.values()) ** 0.5
    for name, gradient in wanted.items():
        bound_here = bound * max(float(gradient.norm()), 1e-3 * total)
        assert float((given[name] - gradient).norm()) <= bound_here, name


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("model", RATES)
def test_random_plans_equal_one_device(model, nodes, run_ranks, references):
    if model not in references:
        references[model] = run_ranks(train_single, 1, model)[0]
    wanted, gradients = references[model]
    graph = graph_of(model)

    @settings(max_examples=1, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    @given(seeds=SEEDS)
    def check(seeds: list[int]) -> None:
        plans = tuple(random_plan(graph, nodes=nodes, per_node=2, seed=seed) for seed in seeds)
        for losses, own in run_ranks(train_by_plans, 2 * nodes, model, nodes, graph, plans)[0]:
            assert losses == pytest.approx(wanted, rel=1e-5)
            assert_same_gradients(own, gradients, 1e-4)

    check()
