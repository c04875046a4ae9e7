"""Any legal plan is exact: losses and gradients as on one device, whatever is split over what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from strategies.planned_runs import Training, graph_of, make_job, sharing_all, step_by, train, whole_state
from strategies.random_plans import random_plan
from syncline.graph.opgraph import OpGraph
from syncline.planning.plan import Plan
from syncline.strategies.registry import parse_strategy
from syncline.workloads.models.registry import BUILTIN_MODELS

# Rates at which ten steps do not amplify rounding: batch norm over few values does so chaotically.
RATES = {
    "mlp:size=tiny": 1e-2,
    "alexnet:size=tiny": 1e-2,
    "vgg16:size=tiny,width=4": 1e-2,
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
PLANS = settings(
    max_examples=5,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_every_model_is_tried():
    assert {model.partition(":")[0] for model in RATES} == BUILTIN_MODELS.keys()


def train_single(training: Training) -> tuple[list[float], dict[str, Tensor]]:
    step = parse_strategy("single").setup(make_job(training))
    return train(step, training), whole_state(step, "momentum_buffer")


def train_planned(training: Training, graph: OpGraph, plan: Plan) -> tuple[list[float], dict[str, Tensor]]:
    with sharing_all():
        step = step_by(plan, graph, training)
        return train(step, training), whole_state(step, "momentum_buffer")


def train_both(
    model: str, nodes: int, graph: OpGraph | None = None, plan: Plan | None = None
) -> tuple[list[float], float, dict[str, Tensor]]:
    """The losses of ten steps, and the loss and the gradients of one in double precision."""
    rate = RATES[model]
    found = [
        train_single(training) if graph is None or plan is None else train_planned(training, graph, plan)
        for training in (
            Training(model, 10, rate, nodes=nodes),
            Training(model, 1, rate, nodes=nodes, double=True),
        )
    ]
    return found[0][0], found[1][0][0], found[1][1]


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    return {}


def assert_same_gradients(given: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    assert given.keys() == wanted.keys()
    # Some gradients are zero but for rounding (biases of attention's keys): the whole is their measure.
    total = sum(float(one.square().sum()) for one in wanted.values()) ** 0.5
    for name, gradient in wanted.items():
        assert float((given[name] - gradient).norm()) <= bound * max(float(gradient.norm()), 1e-3 * total), (
            name
        )


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("model", RATES)
@PLANS
@given(seed=st.integers(0, 2**32 - 1))
def test_random_plans_equal_one_device(model, nodes, run_ranks, references, seed):
    if model not in references:
        references[model] = run_ranks(train_both, 1, model, 1)[0]
    wanted, first, gradients = references[model]
    graph = graph_of(model)
    plan = random_plan(graph, nodes=nodes, per_node=2, seed=seed)
    for losses, own_first, own_gradients in run_ranks(train_both, 2 * nodes, model, nodes, graph, plan):
        assert own_first == pytest.approx(first, rel=1e-10)
        assert_same_gradients(own_gradients, gradients, 1e-8)
        assert losses == pytest.approx(wanted, rel=1e-5)
