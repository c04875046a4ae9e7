"""How well predictions come true here: step time and peak memory of real runs against what was predicted.

    python benchmarks/prediction.py [--only mlp resnet18] [--seconds 8] [-o FILE]

For each setting (model, batch, cluster) the ops, links and wrappers are measured as `syncline plan --measure`
does, every strategy is predicted, and then trained through the library's own launcher. Reported are the error
of each cell, the medians, and for each setting the rank correlation of predicted and measured step times over
the strategies. Cells of other settings are kept as they are in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from record import write_record
from syncline.calibration.measure import measure
from syncline.calibration.site import find_site
from syncline.planning.plan import Plan
from syncline.planning.plan_file import save_plan
from syncline.planning.planner import Request, make_plan
from syncline.planning.prediction import Prediction
from syncline.planning.strategy_predictions import predict_strategies
from syncline.training.config import EvaluationConfig, TrainConfig
from syncline.training.schedule import default_optimizer
from syncline.training.start import start_training
from syncline.workloads.load import load_workload
from syncline.workloads.planning import capture_workload

LEAST_STEPS, MOST_STEPS = 10, 60
STATE_FACTORS = {"sgd": 1.0, "adam": 2.0, "adamw": 2.0}


@dataclass(frozen=True)
class Setting:
    """What is trained and where."""

    model: str
    batch: int
    cluster: str

    @property
    def where(self) -> dict[str, Any]:
        """The settings of a run there."""
        if "@" in self.cluster:
            return {"emulate": self.cluster}
        return {"ranks": int(self.cluster.partition("x")[2])}


SETTINGS = (
    Setting("mlp:layers=4,width=2048", 64, "1x2"),
    Setting("gpt2-tiny:width=128,layers=4", 64, "1x2"),
    Setting("resnet18:image=64", 16, "1x2"),
    Setting("rnnlm:width=256,vocab=10000,seq=32", 32, "1x2"),
    Setting("alexnet:image=64,hidden=1024", 32, "1x2"),
    Setting("transformer:layers=2,width=256,hidden=1024,vocab=8000,seq=64", 16, "1x2"),
    Setting("transformer:layers=2,width=256,hidden=1024,vocab=8000,seq=64", 32, "1x4"),
    Setting("mlp:layers=4,width=1024", 128, "2x1@1gbit"),
)
STRATEGIES = ("data", "zero1", "sharded", "planned", "tensor:degree=2")
EXPERT_HERE = "1x2"
"""Where `tensor:degree=2` is all ranks of a node, which is what the planner's expert does."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One strategy in one setting."""

    model: str
    batch: int
    cluster: str
    strategy: str
    predicted_step_s: float
    measured_step_s: float
    predicted_memory_bytes: float
    measured_memory_bytes: float
    predicted: dict[str, Any]
    """Where the predicted time and memory go."""

    @property
    def step_error(self) -> float:
        """Of the predicted step time, relative to the measured one."""
        return self.predicted_step_s / self.measured_step_s - 1

    @property
    def memory_error(self) -> float:
        """Of the predicted memory."""
        return self.predicted_memory_bytes / self.measured_memory_bytes - 1


def main() -> None:
    """Predict, train, compare."""
    arguments = _parse()
    names = arguments.only
    wanted = [one for one in SETTINGS if not names or any(_label(one).startswith(name) for name in names)]
    with tempfile.TemporaryDirectory() as folder:
        for setting in wanted:
            found = measure_setting(setting, Path(folder), arguments.seconds)
            for cell in found:
                print(_line(cell), flush=True)
            # Setting by setting, so that a run that is stopped leaves what it has found.
            others = [cell for cell in _read(arguments.output) if _setting(cell) != setting]
            cells = sorted([*others, *found], key=lambda cell: SETTINGS.index(_setting(cell)))
            write_record(arguments.output, report(cells))


def measure_setting(setting: Setting, folder: Path, seconds: float) -> list[Cell]:
    """All strategies of one setting."""
    plan, predictions = predict(setting, folder)
    cells = []
    for strategy, one in predictions.items():
        steps = int(np.clip(seconds / one.step_s, LEAST_STEPS, MOST_STEPS))
        config = TrainConfig(
            model=setting.model,
            strategy=strategy,
            batch=setting.batch,
            steps=steps,
            evaluation=EvaluationConfig(batches=0),
            **setting.where,
        )
        with tempfile.TemporaryDirectory() as runs:
            save_plan(plan, Path(runs) / "plan.json")
            given = str(Path(runs) / "plan.json") if strategy == "planned" else None
            summary = start_training(replace(config, plan=given), Path(runs) / "run").summary
        if summary is None or summary.median_step_s is None or summary.peak_memory_bytes is None:
            raise RuntimeError(f"{strategy} of {setting} was not measured")
        cells.append(
            Cell(
                **asdict(setting),
                strategy=strategy,
                predicted_step_s=one.step_s,
                measured_step_s=summary.median_step_s,
                predicted_memory_bytes=one.memory.total,
                measured_memory_bytes=max(summary.peak_memory_bytes),
                predicted=asdict(one),
            )
        )
    return cells


def predict(setting: Setting, folder: Path) -> tuple[Plan, dict[str, Prediction]]:
    """The plan, and the strategies' predictions from measured ops; timings are kept in the folder."""
    workload = load_workload(setting.model, device="meta")
    graph = capture_workload(workload, setting.batch)
    factor = STATE_FACTORS[default_optimizer(workload.input).name]
    request = Request(model=setting.model, batch=setting.batch, state_factor=factor, proposals=0)
    measured = measure(graph, find_site(setting.cluster), request, folder=folder)
    planned = make_plan(graph, measured.cluster, replace(request, calibration=measured.calibration))
    predictions = predict_strategies(planned.search) | {"planned": planned.plan.prediction}
    if setting.cluster == EXPERT_HERE:
        predictions["tensor:degree=2"] = planned.alternatives[1][1].prediction
    return planned.plan, {name: predictions[name] for name in STRATEGIES if name in predictions}


def report(cells: list[Cell]) -> dict[str, Any]:
    """What is written: medians, correlations, and the cells."""
    correlations = {}
    for setting in dict.fromkeys(_setting(cell) for cell in cells):
        own = [cell for cell in cells if _setting(cell) == setting]
        correlations[_label(setting)] = rank_correlation(
            [cell.predicted_step_s for cell in own], [cell.measured_step_s for cell in own]
        )
    figures = {
        "cells": len(cells),
        "median_step_error": statistics.median(abs(cell.step_error) for cell in cells),
        "median_memory_error": statistics.median(abs(cell.memory_error) for cell in cells),
        "rank_correlation": statistics.fmean(correlations.values()),
    }
    print(json.dumps(figures, indent=2))
    return {
        **figures,
        "targets": {"median_step_error": 0.15, "median_memory_error": 0.15, "rank_correlation": 0.9},
        "rank_correlations": correlations,
        "by_cell": [
            asdict(cell) | {"step_error": cell.step_error, "memory_error": cell.memory_error}
            for cell in cells
        ],
    }


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's: the correlation of the places in order."""
    ranks = [np.argsort(np.argsort(values)).astype(float) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _read(path: Path) -> list[Cell]:
    if not path.exists():
        return []
    known = json.loads(path.read_text())["by_cell"]
    cells = [
        Cell(**{key: value for key, value in one.items() if not key.endswith("_error")}) for one in known
    ]
    return [cell for cell in cells if _setting(cell) in SETTINGS]


def _setting(cell: Cell) -> Setting:
    return Setting(cell.model, cell.batch, cell.cluster)


def _label(setting: Setting) -> str:
    return f"{setting.model} batch {setting.batch} on {setting.cluster}"


def _line(cell: Cell) -> str:
    times = f"{cell.measured_step_s * 1e3:8.1f} ms, predicted {cell.predicted_step_s * 1e3:8.1f}"
    memory = f"{cell.measured_memory_bytes / 1e6:7.1f} MB, predicted {cell.predicted_memory_bytes / 1e6:7.1f}"
    errors = f"{cell.step_error:+6.1%} {cell.memory_error:+6.1%}"
    return f"{_label(_setting(cell))[:60]:60} {cell.strategy:8} {times}  {memory}  {errors}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="settings whose labels start so")
    parser.add_argument("--seconds", type=float, default=8.0, help="of training in each cell")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(__file__).parent / "results/prediction.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
