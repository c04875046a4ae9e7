"""What a plan's last run came to, beside what was predicted."""

import dataclasses
import os
from pathlib import Path

import pytest

from plan_samples import plausible_cluster, stack_of_linears
from syncline.cli.explain_view import Comparison, comparison_lines
from syncline.planning.plan import Plan
from syncline.planning.plan_file import save_plan
from syncline.planning.planner import Request, make_plan
from syncline.training.config import TrainConfig
from syncline.training.measurements import Measurements
from syncline.training.planned_runs import last_run
from syncline.training.summary import read_summary, summarise, write_summary


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = stack_of_linears((64, 64), 8)
    return make_plan(graph, plausible_cluster(1, 2), Request(model="m", batch=8, proposals=0)).plan


def make_run(folder: Path, plan: Plan | None, step_s: float, age: int = 0) -> None:
    folder.mkdir(parents=True)
    if plan is not None:
        save_plan(plan, folder / "plan.json")
    summary = summarise(
        TrainConfig(model="mlp", strategy="data", batch=8),
        world_size=2,
        steps=4,
        wall_s=1.0,
        status="ok",
        measurements=Measurements(global_batch=8, step_s=[step_s] * 4),
        peak_memory_bytes=[70, 90],
        sent_bytes={"node": 400, "network": 0},
        prediction=None if plan is None else plan.prediction,
    )
    write_summary(summary, folder)
    os.utime(folder / "summary.json", (1e9 - age, 1e9 - age))


def test_a_summary_has_the_prediction_of_the_plan_that_ran(tmp_path: Path, plan: Plan):
    make_run(tmp_path / "run", plan, 0.5)
    summary = read_summary(tmp_path / "run")
    assert summary.predicted_step_s == plan.prediction.step_s
    assert summary.predicted_peak_memory_bytes == round(plan.prediction.memory.total)
    make_run(tmp_path / "other", None, 0.5)
    assert read_summary(tmp_path / "other").predicted_step_s is None


def test_the_newest_run_of_the_same_plan_counts(tmp_path: Path, plan: Plan):
    assert last_run(plan, tmp_path / "missing") is None
    other = dataclasses.replace(plan, workload=dataclasses.replace(plan.workload, batch=16))
    make_run(tmp_path / "old", plan, 3.0, age=100)
    make_run(tmp_path / "new", plan, 2.0, age=50)
    make_run(tmp_path / "another", other, 1.0)
    make_run(tmp_path / "data", None, 1.0)
    broken = tmp_path / "broken"
    make_run(broken, plan, 1.0)
    (broken / "plan.json").write_text("{")
    found = last_run(plan, tmp_path)
    assert found is not None
    assert (found.folder, found.step_s, found.peak_memory_bytes) == (str(tmp_path / "new"), 2.0, 90)
    assert found.sent_bytes == {"node": 100.0, "network": 0.0}


def test_figures_stand_beside_each_other(tmp_path: Path, plan: Plan):
    make_run(tmp_path / "run", plan, 0.5)
    comparison = Comparison(
        predicted_step_s=1.0,
        predicted_memory_bytes=99.0,
        predicted_sent_bytes={"node": 50.0},
        run=last_run(plan, tmp_path),
    )
    text = "\n".join(comparison_lines(comparison))
    assert "step: 1 s, measured 500 ms (+100%)" in text
    assert "peak memory of a rank: 99 B, measured 90 B (+10%)" in text
    assert "sent in a step (node): 50 B, measured 100 B (-50%)" in text
    alone = "\n".join(comparison_lines(dataclasses.replace(comparison, run=None)))
    assert "no run of this plan" in alone
    assert "measured 5" not in alone
