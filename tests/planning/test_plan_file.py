"""`plan.json`: it reads back equal, says what is wrong with it, and is priced as it stands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from syncline.cluster.presets import cluster_from
from syncline.errors import PlanningError
from syncline.graph import OpGraph, capture_training
from syncline.planning.evaluation import evaluate_plan
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import OpSharding, Plan
from syncline.planning.plan_check import check_plan
from syncline.planning.plan_file import load_plan, save_plan
from syncline.planning.planner import Request, make_plan
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

MODEL, CLUSTER, BATCH = "gpt2-tiny:layers=5", "h100-dgx:2", 32


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    workload = load_workload(MODEL, device="meta")
    return capture_training(
        workload.build_model("meta"), workload.compute_loss, workload_batch(workload, BATCH)
    )


@pytest.fixture(scope="module")
def plan(graph: OpGraph) -> Plan:
    return make_plan(graph, cluster_from(CLUSTER), Request(model=MODEL, batch=BATCH, proposals=0)).plan


def edited(plan: Plan, op: str, **split: tuple[str, ...]) -> Plan:
    return dataclasses.replace(plan, ops={**plan.ops, op: OpSharding(split=split)})


def written(plan: Plan, path: Path, **changes: object) -> Path:
    save_plan(plan, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_plan_reads_back_equal_with_a_line_for_each_op(plan: Plan, tmp_path: Path):
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert load_plan(path) == plan
    lines = path.read_text().splitlines()
    assert all(any(line.strip().startswith(f'"{name}": {{"split"') for line in lines) for name in plan.ops)
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": 2}, ["schema 2", "reads 1"]),
        ({"colour": "red"}, ["unknown key 'colour'", "allowed: workload"]),
        ({"recompute": "yes"}, ["recompute", "'yes'", "true or false"]),
        ({"memory_limit_bytes": "40GB"}, ["memory_limit_bytes", "must be a number"]),
        ({"tied": {"x": "somewhere"}}, ["'somewhere'", *(keeping.value for keeping in Keeping)]),
        ({"ops": {"a/linear": {"split": {"b0": "node"}}}}, ["a/linear", "list of texts"]),
        ({"ops": {"a/linear": {"spilt": {}}}}, ["a/linear", "'spilt'", "allowed: split, keep"]),
    ],
)
def test_what_is_wrong_in_the_file_is_named(plan: Plan, tmp_path: Path, changes: dict, told: list[str]):
    path = written(plan, tmp_path / "plan.json", **changes)
    with pytest.raises(PlanningError) as raised:
        load_plan(path)
    for words in [str(path), *told]:
        assert words in str(raised.value)


def test_files_that_are_no_plans(tmp_path: Path):
    path = tmp_path / "plan.json"
    with pytest.raises(PlanningError, match="Cannot read"):
        load_plan(path)
    path.write_text("{")
    with pytest.raises(PlanningError, match="not JSON"):
        load_plan(path)
    path.write_text("[]")
    with pytest.raises(PlanningError, match="version"):
        load_plan(path)


def test_a_plan_costs_what_it_says(plan: Plan, graph: OpGraph):
    result = evaluate_plan(plan, graph, cluster_from(CLUSTER))
    assert result.agrees
    assert result.fits
    assert result.prediction.step_s == pytest.approx(plan.prediction.step_s)


@pytest.mark.parametrize("block", [0, 2])
def test_an_edited_plan_is_priced_as_it_stands(plan: Plan, graph: OpGraph, block: int):
    """Also where equal blocks are no longer split alike."""
    changed = edited(plan, f"blocks.{block}.up/linear")
    result = evaluate_plan(changed, graph, cluster_from(CLUSTER))
    assert result.prediction.step_s > plan.prediction.step_s
    assert "ms where the plan says" in result.difference


def test_a_plan_is_checked_against_the_graph(plan: Plan, graph: OpGraph):
    check_plan(plan, graph)
    op = "blocks.0.up/linear"
    for split, told in [
        ({"q": ("node.0",)}, ["cannot be split along 'q'", "b0 (32)"]),
        ({"b0": ("rack",)}, ["axis 'rack'", "node.0"]),
        ({"b0": ("node.0",), "n": ("node.0",)}, ["'b0' and for 'n'"]),
        ({"b0": ("node.0", "node.0")}, ["once"]),
    ]:
        with pytest.raises(PlanningError) as raised:
            check_plan(edited(plan, op, **split), graph)
        for words in [op, *told]:
            assert words in str(raised.value)


def test_parts_must_divide(plan: Plan, graph: OpGraph):
    axes = (dataclasses.replace(plan.axes[0], size=3), *plan.axes[1:])
    uneven = edited(dataclasses.replace(plan, axes=axes), "add", b0=(axes[0].name,))
    with pytest.raises(PlanningError, match="parts do not divide"):
        check_plan(uneven, graph)


def test_ops_of_another_model_are_named(plan: Plan, graph: OpGraph):
    fewer = {name: plan.ops[name] for name in list(plan.ops)[1:]}
    with pytest.raises(PlanningError, match="says nothing about 1 of"):
        check_plan(dataclasses.replace(plan, ops=fewer), graph)
    with pytest.raises(PlanningError, match="no op 'conv1'"):
        check_plan(edited(plan, "conv1"), graph)


def test_a_plan_is_for_clusters_of_its_shape(plan: Plan, graph: OpGraph):
    with pytest.raises(PlanningError, match="h100-dgx:4 has 4"):
        evaluate_plan(plan, graph, cluster_from("h100-dgx:4"))
