"""Any legal plan is exact: losses and gradients as on one device, whatever is split over what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from strategies.planned_runs import Training, graph_of, make_job, sharing_all, step_by, train, whole_state
from strategies.random_plans import random_plan
from syncline.graph.opgraph import OpGraph
from syncline.planning.plan import Plan
from syncline.strategies.registry import parse_strategy

# Rates at which ten steps do not amplify rounding: batch norm over few values does so chaotically.
RATES = {
    "mlp:size=tiny": 1e-2,
    "gpt2-tiny:layers=2,seq=16": 1e-2,
}
SEEDS = st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3, unique=True)
"""Several plans at a time: starting ranks and their groups takes longer than training."""


def train_single(training: Training) -> tuple[list[float], dict[str, Tensor]]:
    step = parse_strategy("single").setup(make_job(training))
    return train(step, training), whole_state(step, "momentum_buffer")


def train_both(
    model: str, nodes: int, graph: OpGraph | None = None, plans: tuple[Plan, ...] = ()
) -> list[tuple[list[float], float, dict[str, Tensor]]]:
    """Losses of ten steps, and loss and gradients of one in double precision, by plan or on one device."""
    long = Training(model, 10, RATES[model], nodes=nodes)
    exact = Training(model, 1, RATES[model], nodes=nodes, double=True)
    found = []
    for plan in plans or (None,):
        if graph is None or plan is None:
            losses, (first, gradients) = train_single(long)[0], train_single(exact)
        else:
            losses = train(step_by(plan, graph, long), long)
            with sharing_all():
                step = step_by(plan, graph, exact)
                first, gradients = train(step, exact), whole_state(step, "momentum_buffer")
        found.append((losses, first[0], gradients))
    return found


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
def test_random_plans_equal_one_device(model, nodes, run_ranks, references):
    if model not in references:
        references[model] = run_ranks(train_both, 1, model, 1)[0][0]
    wanted, first, gradients = references[model]
    graph = graph_of(model)

    @settings(max_examples=1, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    @given(seeds=SEEDS)
    def check(seeds: list[int]) -> None:
        plans = tuple(random_plan(graph, nodes=nodes, per_node=2, seed=seed) for seed in seeds)
        for results in run_ranks(train_both, 2 * nodes, model, nodes, graph, plans):
            for losses, own_first, own_gradients in results:
                assert own_first == pytest.approx(first, rel=1e-6)
                assert_same_gradients(own_gradients, gradients, 1e-8)
                assert losses == pytest.approx(wanted, rel=1e-5)

    check()
