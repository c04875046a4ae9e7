"""How much local parallelism learns: backpropagation against blocks with losses of their own.

    python benchmarks/local_learning.py [--task language vision] [--minutes 6] [--jobs 2] [-o FOLDER]

Every method has the same model, data, batch, budget of steps, and tuning: each rate of the grid with the
first seed, then the best one with the others. Methods: backpropagation; 2 and 4 chunks with each head that
fits; overlap and greedy with the default head. Finished trainings are kept, so the command can be repeated
until all are done (about 20 minutes on 2 cores). It writes a table and a page with loss by samples and by
time. Time is that of the slowest block, each on a device of its own: CPU seconds of one process times that
block's share of the FLOPs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from local_cells import Cell, Cells
from local_page import write_page
from record import write_record

SEEDS = (0, 1, 2)
EVALUATION_ROWS = 512
COMMON = {
    "backprop": "chunks=1",
    "2 chunks, mirror": "chunks=2,head=mirror",
    "2 chunks, mlp": "chunks=2,head=mlp",
    "2 chunks, linear": "chunks=2,head=linear",
    "4 chunks, mirror": "chunks=4,head=mirror",
    "overlap, 4 chunks": "variant=overlap,chunks=4",
    "greedy": "variant=greedy",
}


@dataclass(frozen=True)
class Task:
    """What is learned."""

    name: str
    model: str
    data: str
    rates: Sequence[float]
    batch: int
    steps: int
    every: int
    more: dict[str, str]
    """Methods besides the common ones."""
    measure: str
    """`loss` or `accuracy`: what the gap is in."""
    limit: float


TASKS = (
    Task(
        name="language",
        model="gpt2-tiny",
        data="stdlib-text",
        rates=(1e-3, 2e-3, 4e-3),
        batch=16,
        steps=240,
        every=60,
        more={
            "2 chunks, readout": "chunks=2,head=readout",
            "4 chunks, readout": "chunks=4,head=readout",
        },
        measure="loss",
        limit=0.03,
    ),
    Task(
        name="vision",
        model="resnet110:size=tiny,image=16,norm=group,shortcut=project",
        data="digits",
        rates=(1e-3, 2e-3, 4e-3),
        batch=32,
        steps=900,
        every=100,
        more={
            "2 chunks, conv": "chunks=2,head=conv",
            "2 chunks, mirror, cap 3": "chunks=2,head=mirror,head-cap=3",
            "4 chunks, conv": "chunks=4,head=conv",
        },
        measure="accuracy",
        limit=0.01,
    ),
)


def main() -> None:
    """Train what is left to train, and write what there is."""
    arguments = _parse()
    tasks = list(TASKS)
    if arguments.steps:
        tasks = [replace(task, steps=arguments.steps, every=max(1, arguments.steps // 3)) for task in tasks]
    share_s = 60 * arguments.minutes / len(arguments.task)
    path = arguments.output / "local_learning_runs.jsonl"
    results: dict[str, Any] = {}
    figures: list[go.Figure] = []
    for task in tasks:
        ends = time.monotonic() + (share_s if task.name in arguments.task else 0.0)
        with Cells(path, arguments.jobs) as kept:
            best, rows = _train(task, kept, ends)
        results[task.name] = _summarise(task, best, rows)
        figures += _figures(task, rows)
    write_record(arguments.output / "local_learning.json", {"tasks": results})
    write_page(arguments.output / "local_learning.html", "Learning with local losses", figures)
    for name, result in results.items():
        for row in result["methods"]:
            print(name, row)


def _train(task: Task, kept: Cells, ends: float) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Of the methods that are tuned, the best rates, and their trainings with all seeds as far as done."""
    best: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for method in _methods(task):
        tuned = kept.run([_cell(task, method, rate, SEEDS[0]) for rate in task.rates], ends)
        if len(tuned) < len(task.rates):
            continue
        losses = {row["cell"]["rate"]: row["curve"][-1]["loss"] for row in tuned}
        best[method] = min(losses, key=losses.__getitem__)
        rows += kept.run([_cell(task, method, best[method], seed) for seed in SEEDS], ends)
    left = len(_methods(task)) * len(SEEDS) - len(rows)
    print(f"{task.name}: {left} seeds of methods are left" + ": run the command again" * (left > 0))
    return best, rows


def _methods(task: Task) -> dict[str, str]:
    return COMMON | task.more


def _cell(task: Task, method: str, rate: float, seed: int) -> Cell:
    return Cell(
        task=task.name,
        model=task.model,
        data=task.data,
        method=method,
        options=_methods(task)[method],
        rate=rate,
        seed=seed,
        batch=task.batch,
        steps=task.steps,
        every=task.every,
        evaluation_rows=EVALUATION_ROWS,
    )


def _summarise(task: Task, best: dict[str, float], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    methods: list[dict[str, Any]] = []
    for method in best:
        own = [row for row in rows if row["cell"]["method"] == method]
        last = [row["curve"][-1] for row in own]
        methods.append(
            {
                "method": method,
                "rate": best[method],
                "seeds": len(own),
                "loss": statistics.mean(one["loss"] for one in last),
                "loss_spread": max(one["loss"] for one in last) - min(one["loss"] for one in last),
                "accuracy": statistics.mean(one["accuracy"] for one in last),
                "total_flops": own[0]["flops_per_sample"],
                "serial_flops": own[0]["serial_flops_per_sample"],
            }
        )
    reference = next((one for one in methods if one["method"] == "backprop"), None)
    for one in methods:
        if reference is None:
            break
        one["loss_gap"] = one["loss"] / reference["loss"] - 1
        one["accuracy_gap"] = reference["accuracy"] - one["accuracy"]
    gap = "loss_gap" if task.measure == "loss" else "accuracy_gap"
    two = [one for one in methods if one["method"].startswith("2 chunks") and gap in one]
    closest = min(two, key=lambda one: one[gap], default=None)
    return {
        "model": task.model,
        "data": task.data,
        "batch": task.batch,
        "steps": task.steps,
        "rates": list(task.rates),
        "methods": methods,
        "best_of_2_chunks": closest and closest["method"],
        "gap": closest and closest[gap],
        "limit": task.limit,
    }


def _figures(task: Task, rows: Sequence[dict[str, Any]]) -> list[go.Figure]:
    """Loss by samples and by time, the mean over seeds."""
    figures = []
    for axis, title in (("samples", "samples"), ("seconds", "CPU seconds of the slowest block")):
        figure = go.Figure(layout={"title": f"{task.name}: {task.model} on {task.data}"})
        for method in _methods(task):
            own = [row for row in rows if row["cell"]["method"] == method]
            if not own:
                continue
            share = own[0]["serial_flops_per_sample"] / own[0]["flops_per_sample"]
            points = list(zip(*(row["curve"] for row in own), strict=False))
            scale = share if axis == "seconds" else 1.0
            figure.add_scatter(
                x=[scale * statistics.mean(one[axis] for one in point) for point in points],
                y=[statistics.mean(one["loss"] for one in point) for point in points],
                name=method,
            )
        figure.update_xaxes(title=title)
        figure.update_yaxes(title="held-out loss")
        figures.append(figure)
    return figures


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = [task.name for task in TASKS]
    parser.add_argument("--task", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--minutes", type=float, default=6.0, help="start no further training after this long"
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--steps", type=int, default=None, help="another budget, to try the benchmark out")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
