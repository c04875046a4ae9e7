"""Cost against time of reaching a loss: total and serial FLOPs over batch sizes, after Laskin et al. (2020).

    python benchmarks/local_pareto.py [--task mlp gpt2-tiny] [--minutes 6] [--jobs 2] [-o FOLDER]

For each method, batch size and learning rate a training runs over a fixed number of steps. For each loss
cutoff the fewest steps S(B) over learning rates count; cost = S B C, C the FLOPs of a sample over all blocks;
time = S times the FLOPs of one sample of the costliest block, for a batch spreads over devices. The lower
left hull over batch sizes is the method's front. Cutoffs that a method never reaches are marked. Finished
trainings are kept: repeat the command until all are done (about 5 minutes on 2 cores).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from chart_page import write_page
from local_cells import Cell, Cells
from record import write_record

EVALUATION_ROWS = 512
METHODS = {
    "backprop": "chunks=1",
    "2 chunks": "chunks=2",
    "4 chunks": "chunks=4",
    "overlap": "variant=overlap,chunks=4",
    "greedy": "variant=greedy",
}


@dataclass(frozen=True)
class Task:
    """What is learned, over which batch sizes, to which losses."""

    name: str
    model: str
    data: str
    batches: Sequence[int]
    rates: Sequence[float]
    steps: int
    every: int
    cutoffs: Sequence[float]


TASKS = (
    Task(
        "mlp",
        "mlp:layers=8,width=256,features=64",
        "digits",
        (32, 128, 512),
        (5e-4, 2e-3),
        150,
        10,
        (0.5, 0.3, 0.2),
    ),
    Task("gpt2-tiny", "gpt2-tiny", "stdlib-text", (4, 16, 64), (1e-3, 4e-3), 120, 12, (3.4, 3.2, 3.0)),
)


def main() -> None:
    """Train what is left to train, and write what there is."""
    arguments = _parse()
    share_s = 60 * arguments.minutes / len(arguments.task)
    path = arguments.output / "local_pareto_runs.jsonl"
    results: dict[str, Any] = {}
    figures = []
    for task in TASKS:
        steps = arguments.steps or task.steps
        cells = _cells(task, steps, min(task.every, steps))
        ends = time.monotonic() + (share_s if task.name in arguments.task else 0.0)
        with Cells(path, arguments.jobs) as kept:
            rows = kept.run(cells, ends)
        print(f"{task.name}: {len(cells) - len(rows)} of {len(cells)} trainings are left")
        points = [point for cutoff in task.cutoffs for point in _points(rows, cutoff)]
        results[task.name] = {"model": task.model, "data": task.data, "steps": steps, "points": points}
        figures += [_figure(task, cutoff, points) for cutoff in task.cutoffs]
    write_record(arguments.output / "local_pareto.json", {"tasks": results})
    write_page(arguments.output / "local_pareto.html", "Cost and time of reaching a loss", figures)


def _cells(task: Task, steps: int, every: int) -> list[Cell]:
    return [
        Cell(
            task=f"pareto {task.name}",
            model=task.model,
            data=task.data,
            method=method,
            options=options,
            rate=rate,
            seed=0,
            batch=batch,
            steps=steps,
            every=every,
            evaluation_rows=EVALUATION_ROWS,
        )
        for batch in task.batches
        for rate in task.rates
        for method, options in METHODS.items()
    ]


def _points(rows: Iterable[dict[str, Any]], cutoff: float) -> list[dict[str, Any]]:
    """For each method and batch size the fewest steps to a held-out loss, and what they cost."""
    points = []
    by_cell: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault((row["cell"]["method"], row["cell"]["batch"]), []).append(row)
    for (method, batch), own in by_cell.items():
        reached = [one["step"] for row in own for one in row["curve"] if one["loss"] <= cutoff]
        point: dict[str, Any] = {"cutoff": cutoff, "method": method, "batch": batch, "steps": None}
        if reached:
            steps = min(reached)
            point |= {
                "steps": steps,
                "total_flops": steps * batch * own[0]["flops_per_sample"],
                "serial_flops": steps * own[0]["serial_flops_per_sample"],
            }
        points.append(point)
    for point in points:
        point["on_front"] = point["steps"] is not None and not any(
            _beats(other, point) for other in points if other["method"] == point["method"]
        )
    return points


def _beats(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one["steps"] is None or one is other:
        return False
    cheaper = one["total_flops"] <= other["total_flops"]
    faster = one["serial_flops"] <= other["serial_flops"]
    better = one["total_flops"] < other["total_flops"] or one["serial_flops"] < other["serial_flops"]
    return cheaper and faster and better


def _figure(task: Task, cutoff: float, points: Sequence[dict[str, Any]]) -> go.Figure:
    figure = go.Figure(layout={"title": f"{task.name}: reaching a held-out loss of {cutoff}"})
    for method in METHODS:
        own = [one for one in points if one["method"] == method and one["cutoff"] == cutoff]
        front = sorted((one for one in own if one["on_front"]), key=lambda one: one["total_flops"])
        never = all(one["steps"] is None for one in own)
        figure.add_scatter(
            x=[one["total_flops"] for one in front],
            y=[one["serial_flops"] for one in front],
            text=[f"batch {one['batch']}, {one['steps']} steps" for one in front],
            name=f"{method} (never)" if never else method,
            mode="lines+markers",
        )
    figure.update_xaxes(title="cost: FLOPs of all blocks", type="log")
    figure.update_yaxes(title="time: serial FLOPs", type="log")
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
