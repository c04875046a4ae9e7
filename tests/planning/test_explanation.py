"""Explanations: costs by op add up, prices elsewhere are those of a search there, changes named do help."""

from __future__ import annotations

import re

import pytest

from syncline.cluster.presets import cluster_from
from syncline.graph import OpGraph, capture_training
from syncline.planning.breakdown import CAUSES, node_costs, op_costs
from syncline.planning.explanation import explain
from syncline.planning.layers import sections
from syncline.planning.planner import Planned, Request, make_plan
from syncline.planning.repricing import Repricer, with_bandwidth
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

MODEL, CLUSTER, BATCH = "gpt2-tiny:layers=5", "gtx1080ti-pcie:2", 32


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    workload = load_workload(MODEL, device="meta")
    return capture_training(
        workload.build_model("meta"), workload.compute_loss, workload_batch(workload, BATCH)
    )


@pytest.fixture(scope="module")
def planned(graph: OpGraph) -> Planned:
    return make_plan(graph, cluster_from(CLUSTER), Request(model=MODEL, batch=BATCH, proposals=0))


def test_costs_by_op_add_up_to_those_of_the_plan(planned: Planned, graph: OpGraph):
    step_s = planned.plan.prediction.step_s
    by_op = op_costs(planned.search, planned.chosen)
    by_layer = sections(planned.plan, graph, by_op)
    assert sum(cost.total_s for cost in node_costs(planned.search, planned.chosen).values()) == pytest.approx(
        step_s
    )
    assert sum(cost.total_s for cost in by_op.values()) == pytest.approx(step_s)
    assert sum(section.seconds for section in by_layer) == pytest.approx(step_s)
    assert sum(row.count for section in by_layer for row in section.rows) == len(graph.ops)
    saved = sum(cost.saved_bytes for cost in by_op.values())
    assert saved == pytest.approx(planned.plan.prediction.memory.saved_activations)


def test_prices_here_are_those_of_the_search(planned: Planned):
    repricer = Repricer(planned)
    known = [planned.plan.prediction, *(one.prediction for _, one in planned.alternatives)]
    assert repricer.steps_s(repricer.cluster) == pytest.approx([one.step_s for one in known])


def test_the_next_best_is_another_split_and_no_faster(planned: Planned):
    explanation = explain(planned)
    assert len(explanation.ops) > 2
    for reason in explanation.ops:
        assert reason.next_split != reason.split
        assert reason.next_step_s is not None
        assert reason.next_step_s >= explanation.step_s * (1 - 1e-9)
        assert set(reason.causes) == set(CAUSES)
        assert sum(reason.causes.values()) == pytest.approx(reason.seconds)


def test_a_faster_resource_never_slows_the_step(planned: Planned):
    resources = explain(planned).resources
    gains = [one.gain for one in resources]
    assert gains == sorted(gains, reverse=True)
    assert all(-1e-9 <= gain <= 0.5 + 1e-9 for gain in gains)


def test_the_bandwidth_named_makes_the_alternative_win(planned: Planned):
    repricer = Repricer(planned)
    named = 0
    for place, verdict in enumerate(explain(planned).verdicts, start=1):
        for change in verdict.changes:
            found = re.fullmatch(r"with .* the bandwidth of '(\w+)' \(([\d.e+-]+) GB/s a device\)", change)
            if found is not None:
                named += 1
                level, rate = found[1], float(found[2]) * 1e9
                factor = rate / repricer.cluster.level(level).bytes_per_s
                beyond = factor * (1.05 if factor > 1 else 0.95)
                steps = repricer.steps_s(with_bandwidth(repricer.cluster, level, beyond))
                assert steps[place] < steps[0]
    assert named
