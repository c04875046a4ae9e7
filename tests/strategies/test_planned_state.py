"""What a plan has trained goes on under any other: weights and optimizer state change hands exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from strategies.planned_runs import Training, graph_of, make_job, sharing_all, step_by, train, whole_state
from strategies.random_plans import as_plan, random_plan
from syncline.cluster.machine import machines_like_this
from syncline.graph.opgraph import OpGraph
from syncline.planning.axes import search_axes
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import OpSharding, Plan
from syncline.strategies.protocol import TrainStep
from syncline.strategies.registry import parse_strategy

GPT2 = Training("gpt2-tiny:layers=1,seq=8", steps=2, rate=1e-3, optimizer="adamw")
RNNLM = Training("rnnlm:size=tiny,seq=8,width=32", steps=2, rate=1e-3, optimizer="adamw")
State = tuple[list[float], dict[str, Tensor]]


def split_units(graph: OpGraph, ranks: int) -> Plan:
    """The plan that splits the hidden units of recurrent layers over all ranks, and nothing else."""
    axes = search_axes(machines_like_this("test", nodes=1, per_node=ranks))
    names = tuple(axis.name for axis in axes.axes)
    ops = {
        op.name: OpSharding(split={"h": names} if "lstm" in op.target else {}, keep=Keeping.SHARDED)
        for op in graph.ops
    }
    return as_plan(graph, axes, ops, {})


def step_of(how: str | Plan, graph: OpGraph, training: Training) -> TrainStep:
    if isinstance(how, Plan):
        return step_by(how, graph, training)
    return parse_strategy(how).setup(make_job(training))


def hand_on(
    training: Training, graph: OpGraph, givers: list[str | Plan], takers: list[str | Plan], folder: str
) -> list[list[State]]:
    """For each giver and each taker: the losses after the checkpoint, and the state at the end."""
    found: list[list[State]] = []
    with sharing_all():
        for number, giver in enumerate(givers):
            step = step_of(giver, graph, training)
            train(step, training)
            path = str(Path(folder) / str(number))
            dcp.save({"step": step}, checkpoint_id=path)
            found.append([go_on(step_of(taker, graph, training), training, path) for taker in takers])
    return found


def go_on(step: TrainStep, training: Training, path: str) -> State:
    dcp.load({"step": step}, checkpoint_id=path)
    dist.barrier()
    return train(step, training, start=training.steps), whole_state(step)


def train_single(training: Training) -> State:
    step = parse_strategy("single").setup(make_job(training))
    train(step, training)
    return train(step, training, start=training.steps), whole_state(step)


def assert_all_same(found: list[list[list[State]]], wanted: State) -> None:
    for by_giver in found:
        for by_taker in by_giver:
            for losses, state in by_taker:
                assert losses == pytest.approx(wanted[0], rel=1e-5)
                assert state.keys() == wanted[1].keys()
                for name, value in wanted[1].items():
                    # AdamW turns rounding in gradients near zero into steps of its own rate.
                    bound = 1e-6 if name.startswith("optimizer") else 1e-4
                    torch.testing.assert_close(state[name], value, rtol=1e-3, atol=bound, msg=name)


@pytest.mark.parametrize("ranks", [2, 4])
def test_state_moves_between_plans_and_strategies(ranks, run_ranks, tmp_path):
    graph = graph_of(GPT2.model)
    one, other = (random_plan(graph, nodes=1, per_node=ranks, seed=seed) for seed in (1, 2))
    ways = [one, "data"], [other, "sharded"]
    wanted = run_ranks(train_single, 1, GPT2)[0]
    assert any(name.endswith("exp_avg_sq") for name in wanted[1])
    assert_all_same(run_ranks(hand_on, ranks, GPT2, graph, *ways, str(tmp_path)), wanted)


@pytest.mark.parametrize("ranks", [2])
def test_units_of_recurrent_layers_change_hands(ranks, run_ranks, tmp_path):
    graph = graph_of(RNNLM.model)
    split, other = split_units(graph, ranks), random_plan(graph, nodes=1, per_node=ranks, seed=5)
    ways = [split, "data"], [split, other]
    wanted = run_ranks(train_single, 1, RNNLM)[0]
    assert_all_same(run_ranks(hand_on, ranks, RNNLM, graph, *ways, str(tmp_path)), wanted)
