"""How much local parallelism learns: backpropagation against blocks with losses of their own.

    python benchmarks/local_learning.py [--task language vision] [--minutes 6] [--jobs 2] [-o FOLDER]

Every method has the same model, data, batch, budget of steps, and tuning: each rate of the grid with the
first seed, then the best one with the others. Budgets are short, so that all fit into half an hour on 2
cores. Methods: backpropagation; 2 chunks, 4 chunks, overlap and greedy, each with each head; a head that does
not fit the task is listed with the reason. Methods that make the same blocks share one training, and say so.
Finished trainings are kept: repeat the command until all are done. It writes a table and a page with loss by
samples and by time. Time is that of the slowest block, each on a device of its own: CPU seconds of one
process times that block's share of the FLOPs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from chart_page import write_page
from local_cells import Cell, Cells, what_is_trained
from record import write_record
from syncline.errors import StrategyError
from syncline.strategies.local.heads import HeadKind

SEEDS = (0, 1, 2)
EVALUATION_ROWS = 512
VARIANTS = {
    "2 chunks": "chunks=2",
    "4 chunks": "chunks=4",
    "overlap, 4 chunks": "variant=overlap,chunks=4",
    "greedy": "variant=greedy",
}
HEADS: tuple[str, ...] = get_args(HeadKind)
AXES = {"samples": "samples", "seconds": "CPU seconds of the slowest block"}
LINES: dict[str, dict[str, Any]] = {
    "backprop": {"color": "black", "width": 3},
    "linear": {"color": qualitative.D3[0]},
    "mlp": {"color": qualitative.D3[1]},
    "conv": {"color": qualitative.D3[2]},
    "mirror": {"color": qualitative.D3[4], "width": 4},
    "readout": {"color": qualitative.D3[3], "dash": "dot"},
    "mirror, cap 3": {"color": qualitative.D3[6], "dash": "dot"},
}
"""Dots for what may lie on another line."""
TICKS = (0.05, 0.1, 0.2, 0.5, 1, 2, 2.5, 3, 3.5, 4)


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
    measure: str
    """`loss` or `accuracy`: what the gap is in."""
    limit: float
    more: Mapping[str, str] = field(default_factory=dict)
    """Methods besides each variant with each head, for comparison only."""


TASKS = (
    Task(
        name="language",
        model="gpt2-tiny",
        data="stdlib-text",
        rates=(1e-3, 2e-3, 4e-3),
        batch=16,
        steps=240,
        every=60,
        measure="loss",
        limit=0.03,
    ),
    Task(
        name="vision",
        model="resnet110:size=tiny,image=16,norm=group,shortcut=project",
        data="digits",
        rates=(1e-3, 2e-3, 4e-3),
        batch=32,
        steps=600,
        every=100,
        measure="accuracy",
        limit=0.01,
        more={"2 chunks, mirror, cap 3": "chunks=2,head=mirror,head-cap=3"},
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
        methods, unfit = _methods(task)
        with Cells(path, arguments.jobs) as kept:
            rows = _train(task, methods, kept, ends)
        results[task.name] = _summarise(task, rows) | {"unfit": unfit}
        figures += [_figure(task, rows, axis) for axis in AXES]
    write_record(arguments.output / "local_learning.json", {"tasks": results})
    write_page(arguments.output / "local_learning.html", "Learning with local losses", figures)
    for name, result in results.items():
        for row in result["methods"]:
            print(name, row)


def _methods(task: Task) -> tuple[dict[str, str], dict[str, str]]:
    """The options of each method, and why others do not fit the task."""
    options = {
        f"{variant}, {head}": f"{blocks},head={head}"
        for (variant, blocks), head in product(VARIANTS.items(), HEADS)
    }
    fitting: dict[str, str] = {}
    unfit: dict[str, str] = {}
    for method, given in ({"backprop": "chunks=1"} | options | dict(task.more)).items():
        try:
            what_is_trained(task.model, task.data, task.batch, given)
            fitting[method] = given
        except StrategyError as error:
            unfit[method] = str(error)
    return fitting, unfit


def _train(task: Task, methods: Mapping[str, str], kept: Cells, ends: float) -> list[dict[str, Any]]:
    """The trainings of each method with its best rate and all seeds, as far as done."""

    def cell(method: str, rate: float, seed: int) -> Cell:
        return Cell(
            task=task.name,
            model=task.model,
            data=task.data,
            method=method,
            options=methods[method],
            rate=rate,
            seed=seed,
            batch=task.batch,
            steps=task.steps,
            every=task.every,
            evaluation_rows=EVALUATION_ROWS,
        )

    tuned = kept.run([cell(method, rate, SEEDS[0]) for method in methods for rate in task.rates], ends)
    losses: dict[str, dict[float, float]] = {method: {} for method in methods}
    for row in tuned:
        losses[row["cell"]["method"]][row["cell"]["rate"]] = row["curve"][-1]["loss"]
    best = {
        method: min(by_rate, key=by_rate.__getitem__)
        for method, by_rate in losses.items()
        if len(by_rate) == len(task.rates)
    }
    rows = kept.run([cell(method, rate, seed) for method, rate in best.items() for seed in SEEDS], ends)
    left = len(methods) * len(SEEDS) - len(rows)
    print(f"{task.name}: {left} seeds of methods are left" + ": run the command again" * (left > 0))
    return rows


def _summarise(task: Task, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    methods: list[dict[str, Any]] = []
    first: dict[str, str] = {}
    for method, own in _by_method(rows).items():
        last = [row["curve"][-1] for row in own]
        methods.append(
            {
                "method": method,
                "rate": own[0]["cell"]["rate"],
                "seeds": len(own),
                "loss": statistics.mean(one["loss"] for one in last),
                "loss_spread": max(one["loss"] for one in last) - min(one["loss"] for one in last),
                "accuracy": statistics.mean(one["accuracy"] for one in last),
                "total_flops": own[0]["flops_per_sample"],
                "serial_flops": own[0]["serial_flops_per_sample"],
            }
        )
        same = first.setdefault(own[0]["key"], method)
        if same != method:
            methods[-1]["same_training_as"] = same
    reference = next((one for one in methods if one["method"] == "backprop"), None)
    for one in methods:
        if reference is None:
            break
        one["loss_gap"] = one["loss"] / reference["loss"] - 1
        one["accuracy_gap"] = reference["accuracy"] - one["accuracy"]
    gap = "loss_gap" if task.measure == "loss" else "accuracy_gap"
    heads = [f"2 chunks, {head}" for head in HEADS]
    two = [one for one in methods if one["method"] in heads and gap in one]
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


def _by_method(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    methods: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        methods.setdefault(row["cell"]["method"], []).append(row)
    return methods


def _figure(task: Task, rows: Sequence[dict[str, Any]], axis: str) -> go.Figure:
    """Loss by samples or by time, the mean over seeds: a panel for each variant, a line for each head."""
    figure = make_subplots(
        cols=len(VARIANTS), shared_xaxes="all", shared_yaxes=True, subplot_titles=list(VARIANTS)
    )
    shown: set[str] = set()
    for method, own in _by_method(rows).items():
        share = own[0]["serial_flops_per_sample"] / own[0]["flops_per_sample"]
        scale = share if axis == "seconds" else 1.0
        points = list(zip(*(row["curve"] for row in own), strict=False))
        for column, variant in enumerate(VARIANTS, start=1):
            if method != "backprop" and not method.startswith(variant):
                continue
            name = method.removeprefix(f"{variant}, ")
            figure.add_scatter(
                x=[scale * statistics.mean(one[axis] for one in point) for point in points],
                y=[statistics.mean(one["loss"] for one in point) for point in points],
                name=name,
                legendgroup=name,
                showlegend=name not in shown,
                line=LINES[name],
                row=1,
                col=column,
            )
            shown.add(name)
    figure.update_layout(
        title=f"{task.name}, {task.model} on {task.data}: held-out loss by {AXES[axis]}",
        height=320,
        margin={"t": 80, "b": 40},
    )
    figure.update_yaxes(type="log", tickvals=TICKS)
    return figure


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
