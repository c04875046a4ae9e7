"""A plan that cannot run on the ranks at hand is refused, with numbers and with what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies.planned_runs import Training, graph_of, make_job
from strategies.random_plans import random_plan
from syncline.cluster.rank import Rank
from syncline.errors import PlanningError, StrategyError
from syncline.planning.prediction import Memory, Prediction, Times
from syncline.strategies.parallelize import parallelize
from syncline.strategies.planned.checks import check_live

MODEL = "mlp:size=tiny"


def refusal(plan, *, ranks, per_node, model=MODEL):
    job = replace(make_job(Training(model)), rank=Rank(world_size=ranks, local_world_size=per_node))
    with pytest.raises(PlanningError) as caught:
        check_live(plan, graph_of(model), job)
    return str(caught.value)


def test_another_number_of_ranks():
    plan = random_plan(graph_of(MODEL), nodes=2, per_node=4, seed=1)
    message = refusal(plan, ranks=4, per_node=4)
    assert "for 8 ranks" in message
    assert "but 4 run" in message
    assert "--ranks 8" in message


def test_nodes_of_another_size():
    plan = random_plan(graph_of(MODEL), nodes=1, per_node=4, seed=1)
    message = refusal(plan, ranks=4, per_node=2)
    assert "for nodes of 4 ranks" in message
    assert "a node here has 2" in message
    assert "--cluster 2x2" in message


def test_another_model():
    plan = random_plan(graph_of(MODEL), nodes=1, per_node=2, seed=1)
    message = refusal(plan, ranks=2, per_node=2, model="alexnet:size=tiny")
    assert "not for this model" in message


def test_more_memory_than_there_is():
    plan = random_plan(graph_of(MODEL), nodes=1, per_node=2, seed=1)
    large = replace(plan, prediction=Prediction(times=Times(), memory=Memory(weights=1e15)))
    message = refusal(large, ranks=2, per_node=2)
    assert "needs 1e+06 GB a rank, most of it for weights" in message
    assert "2 share this machine" in message
    assert "--memory" in message


def messages_without_example(*strategies):
    found = []
    for strategy in strategies:
        job = make_job(Training(MODEL))
        try:
            parallelize(job.model, job.optimizer, strategy=strategy)
        except StrategyError as error:
            found.append(str(error))
    return found


def test_nothing_says_what_a_batch_looks_like(run_ranks):
    plan = random_plan(graph_of(MODEL), nodes=1, per_node=1, seed=1)
    (messages,) = run_ranks(messages_without_example, 1, "planned", "tensor", plan)
    assert [message.split("'")[1] for message in messages] == ["planned", "tensor", "planned"]
    assert all("Give syncline.parallelize an example_batch" in message for message in messages)
