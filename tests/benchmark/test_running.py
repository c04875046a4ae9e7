"""What becomes of a cell, whatever happens to its training; no rank is started here."""

import dataclasses

import pytest
from measured_rows import make_environment

from syncline.benchmark import protocol, running
from syncline.benchmark.cells import list_cells
from syncline.benchmark.predictions import Predictions
from syncline.benchmark.row import brief, read_rows
from syncline.benchmark.running import Bench, run_cell
from syncline.benchmark.suite import Budget, Suite
from syncline.launch import namespaces
from syncline.training.start import Ended
from syncline.training.summary import summarise

SUITE = Suite(name="small", models=("mlp",), strategies=("single", "data"), budget=Budget(steps=24), batch=8)


def run_first(suite, folder):
    """The row of a suite's first cell."""
    environment = make_environment()
    bench = Bench(suite=suite, folder=folder, environment=environment, predictions=Predictions(suite))
    return run_cell(bench, list_cells(suite)[0])


def raising(error):
    def start_training(config, folder):
        raise error

    return start_training


@pytest.mark.parametrize("error", [KeyError("loss"), SystemExit(3), OSError(28, "No space left")])
def test_any_failure_of_a_cell_is_a_row_and_its_traceback_is_kept(error, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "start_training", raising(error))
    row = run_first(SUITE, tmp_path)
    assert (row.status, row.cell) == ("failed", list_cells(SUITE)[0].name)
    assert brief(row.reason) == f"{type(error).__name__}: {error}"
    (log,) = (tmp_path / "runs").glob("*.log")
    assert str(log) in (row.reason or "")
    assert "in start_training" in log.read_text()


def test_what_a_run_left_unreadable_is_a_row_too(tmp_path, monkeypatch):
    def start_training(config, folder):
        folder.mkdir()
        return Ended(
            folder=folder, summary=summarise(config, world_size=1, steps=24, wall_s=1.0, status="ok")
        )

    monkeypatch.setattr(running, "start_training", start_training)
    row = run_first(SUITE, tmp_path)
    assert brief(row.reason).startswith("FileNotFoundError")
    assert "metrics.jsonl" in (tmp_path / "runs" / row.cell / "output.log").read_text()


def test_the_other_cells_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "start_training", raising(RuntimeError("")))
    monkeypatch.setattr(protocol, "look_around", make_environment)
    ran = protocol.run_suite(SUITE, tmp_path / "out")
    assert [row.status for row in ran.rows] == ["failed", "failed"]
    assert read_rows(tmp_path / "out") == ran.rows


def test_a_short_run_tells_how_many_steps_fit_into_seconds(tmp_path, monkeypatch):
    asked = []

    def start_training(config, folder):
        asked.append((config.steps, config.inspect))
        folder.mkdir()
        summary = summarise(config, world_size=1, steps=config.steps, wall_s=1.0, status="ok")
        return Ended(folder=folder, summary=dataclasses.replace(summary, median_step_s=0.05))

    monkeypatch.setattr(running, "start_training", start_training)
    run_first(dataclasses.replace(SUITE, budget=Budget(seconds=2.0)), tmp_path)
    assert asked == [(12, 0), (40, 4)]


def test_ctrl_c_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "start_training", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run_first(SUITE, tmp_path)


def test_an_emulated_cell_without_root_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(namespaces, "_find", lambda tool: tool)
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    suite = dataclasses.replace(SUITE, strategies=("data",), clusters=("2x1@1gbit",))
    row = run_first(suite, tmp_path)
    assert (row.status, row.cluster, row.world_size) == ("skipped", "2x1@1gbit", 2)
    assert "needs root" in (row.reason or "")


@pytest.mark.parametrize("reason", [None, "", "\n", "  \n"])
def test_a_reason_may_be_missing(reason):
    assert brief(reason) == "no reason was given"
    assert brief("\nfirst\nsecond") == "first"
