"""Any legal plan is exact: losses and gradients as on one device, whatever is split over what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from strategies.planned_runs import Training, graph_of, make_job, sharing_all, step_by, train, whole_state
from strategies.random_plans import data_plan, random_plan
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
    "inception3:size=tiny,image=20,norm=group": 1e-3,
    "resnet18:size=tiny,image=8": 1e-5,
    "resnet50:size=tiny,image=8,norm=group": 1e-3,
    "resnet110:size=tiny,depth=8,image=8": 1e-4,
    "rnnlm:size=tiny,seq=8,width=32": 1e-2,
    "transformer:size=tiny,layers=1,seq=8": 1e-2,
    "gpt2-tiny:layers=1,seq=16": 1e-2,
    "gpt2-small:size=tiny,layers=1,width=48,heads=6,seq=12,vocab=258": 1e-2,
    "gpt2-medium:size=tiny,layers=1,width=64,heads=8,seq=8": 1e-2,
    "llama-7b:size=tiny,layers=1,seq=16": 1e-2,
    "llama-70b:size=tiny,layers=1,seq=16": 1e-2,
}
ALWAYS = {
    1: (
        "mlp:size=tiny",
        "alexnet:size=tiny",
        "resnet110:size=tiny,depth=8,image=8",
        "rnnlm:size=tiny,seq=8,width=32",
        "transformer:size=tiny,layers=1,seq=8",
        "gpt2-tiny:layers=1,seq=16",
        "llama-70b:size=tiny,layers=1,seq=16",
    ),
    2: ("gpt2-tiny:layers=1,seq=16",),
}
"""Models that each run of the tests tries on so many nodes; `make thorough` tries all."""
ODD_OPS = 8
SEEDS = st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=5, unique=True)
"""Several plans at a time: starting ranks and their groups takes longer than training."""

Traces = tuple[list[float], dict[str, Tensor]]
"""The losses of some steps, and the gradients of the first."""


def trace(step: TrainStep, training: Training) -> Traces:
    losses = train(step, replace(training, steps=1))
    # Momentum after one step is the gradient.
    gradients = whole_state(step, "momentum_buffer")
    if training.steps > 1:
        losses += train(step, replace(training, steps=training.steps - 1), start=1)
    return losses, gradients


def trace_single(training: Training) -> Traces:
    return trace(parse_strategy("single").setup(make_job(training)), training)


def trace_plans(training: Training, graph: OpGraph, plans: tuple[Plan, ...]) -> list[Traces]:
    with sharing_all():
        return [trace(step_by(plan, graph, training), training) for plan in plans]


def assert_same_gradients(given: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    assert given.keys() == wanted.keys()
    # Some gradients are zero but for rounding (biases of attention's keys): the whole is their measure.
    total = sum(float(one.square().sum()) for one in wanted.values()) ** 0.5
    for name, gradient in wanted.items():
        bound_here = bound * max(float(gradient.norm()), 1e-3 * total)
        assert float((given[name] - gradient).norm()) <= bound_here, name


def check_plans(
    training: Training,
    run_ranks: Callable[..., list],
    *,
    odd_ops: int | None,
    loss_bound: float,
    bound: float,
) -> None:
    losses, gradients = run_ranks(trace_single, 1, replace(training, nodes=1))[0]
    graph = graph_of(training.model)
    nodes = training.nodes

    @settings(max_examples=1, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    @given(seeds=SEEDS)
    def check(seeds: list[int]) -> None:
        plans = tuple(
            random_plan(graph, nodes=nodes, per_node=2, seed=seed, odd_ops=odd_ops) for seed in seeds
        )
        for given_losses, given_gradients in run_ranks(trace_plans, 2 * nodes, training, graph, plans)[0]:
            assert given_losses == pytest.approx(losses, rel=loss_bound)
            assert_same_gradients(given_gradients, gradients, bound)

    check()


def models_on(nodes: int) -> list:
    thorough = pytest.mark.thorough
    return [model if model in ALWAYS[nodes] else pytest.param(model, marks=thorough) for model in RATES]


@pytest.mark.parametrize("model", models_on(1))
def test_random_plans_on_two_ranks_equal_one_device(model, run_ranks):
    training = Training(model, 10, RATES[model])
    check_plans(training, run_ranks, odd_ops=ODD_OPS, loss_bound=1e-5, bound=1e-4)


@pytest.mark.parametrize("model", models_on(2))
def test_random_plans_on_two_nodes_of_two_ranks_equal_one_device(model, run_ranks):
    training = Training(model, 10, RATES[model], nodes=2)
    check_plans(training, run_ranks, odd_ops=ODD_OPS, loss_bound=1e-5, bound=1e-4)


# Fifty layers of batch norm over a few values lose more in single precision than any plan may differ by.
@pytest.mark.thorough
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("model", ["inception3:size=tiny,image=20", "resnet50:size=tiny,image=8"])
def test_many_layers_of_batch_norm_equal_one_device(model, nodes, run_ranks):
    exact = Training(model, 1, 1e-5, double=True, nodes=nodes)
    check_plans(exact, run_ranks, odd_ops=ODD_OPS, loss_bound=1e-6, bound=1e-8)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("model", ["mlp:size=tiny", "gpt2-tiny:layers=1,seq=16"])
def test_plans_that_split_every_op_by_chance_equal_one_device(model, nodes, run_ranks):
    exact = Training(model, 1, RATES[model], double=True, nodes=nodes)
    check_plans(exact, run_ranks, odd_ops=None, loss_bound=1e-6, bound=1e-8)


def test_every_model_is_tried():
    assert {model.partition(":")[0] for model in RATES} == BUILTIN_MODELS.keys()


def first_calls(training: Training, graph: OpGraph) -> tuple[int, int]:
    """When a step's first all-reduce and its first product of matrices begin, in the order of all calls."""
    step = step_by(data_plan(graph, nodes=1, per_node=2), graph, training)
    train(step, training)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        train(step, training)
    calls = sorted(profiled.events() or [], key=lambda call: call.time_range.start)
    names = [call.name for call in calls]
    return names.index("c10d::allreduce_"), names.index("aten::mm")


def test_what_is_known_early_is_exchanged_early(run_ranks):
    """How many targets the mean of the loss is over is known before the first layer."""
    training = Training("gpt2-tiny:layers=1,seq=16", 1)
    for exchange, product in run_ranks(first_calls, 2, training, graph_of(training.model)):
        assert exchange < product
