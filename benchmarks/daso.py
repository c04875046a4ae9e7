"""Training across slow links: time to the same loss, by strategy, on emulated nodes.

    python benchmarks/daso.py [--parts cells exposure pace] [--clusters 2x1@100mbit 2x2@1gbit] \
        [--models gpt2-tiny:seq=32] [--only data daso] [--seeds 3] [--minutes 5] [-o FILE]

A *cell* is one training: a cluster, a model, a strategy and a seed. All strategies of a cluster, model and
seed start with the same weights and train on the same batches for as many steps, on the same ranks, one
after another. The target is the loss that plain data parallelism has after nine tenths of its steps.
What is trained on which cluster stands in `daso_settings.py`; all of it takes five hours.

*exposure* is how long a rank stands still for an exchange that fits into its wait, beside a blocking one.
*pace* is the time of a step beside data parallelism's where links are not limited, in alternating blocks.

What is done is kept in a folder beside the record and not done again: after `--minutes` the script stops, and
the next call goes on, perhaps with other options. The record is made of all that was kept, and of what it had
of other settings, each with its date, commit and machine. Beside it is a page with the loss by time.
Emulation needs root.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chart_page import write_page
from daso_cells import Cell
from daso_charts import charts_of
from daso_record import join_records
from daso_rows import BASELINE, line_of, rows_of, skipped_rows
from daso_settings import TASKS, Task, is_limited
from daso_torchft import TORCHFT, skip_reason
from record import origin, write_record
from syncline.cluster.emulation import parse_emulation
from syncline.errors import SynclineError
from syncline.launch.emulated import launch_emulated

PACED = (
    BASELINE,
    "daso:warm-up=8",
    "daso:warm-up=8,sync-every=auto",
    "daso:warm-up=8,sync-every=auto,wire=bf16",
)
PACE_ROUNDS, PACE_BLOCK = 12, 16
"""Besides a first block that does not count, with the warm-up."""
WAIT = 16
"""Steps that an exchange has to arrive in, for exposure; doubled until it fits."""


def contenders(cluster: str) -> list[str]:
    """The strategies that are compared on a cluster."""
    ranks = parse_emulation(cluster).ranks_per_node
    # What ranks a node has is all the same to the published merge.
    some_have = [f"sharded:group={ranks}"] if ranks > 1 else ["daso:sync-every=auto,merge=paper"]
    return [
        BASELINE,
        "daso",
        "daso:sync-every=auto",
        "daso:sync-every=auto,wire=bf16",
        *some_have,
        "local-sgd",
        "diloco:sync-every=16",
        "data:compress=fp16",
        "data:compress=powersgd",
        # Last: a rank that fails in foreign code ends the others too.
        *TORCHFT,
    ]


class Benchmark:
    """What was asked for, what is kept of it, and until when to work."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._asked = arguments
        self._kept = arguments.output.with_suffix(".cells").absolute()
        self._kept.mkdir(parents=True, exist_ok=True)
        self._until = time.time() + 60 * arguments.minutes

    def run(self) -> None:
        """Do what is missing while there is time; then write all that there is."""
        if "pace" in self._asked.parts:
            self._pace()
        if "exposure" in self._asked.parts:
            self._exposure()
        if "cells" in self._asked.parts:
            self._train()
        done = [json.loads(path.read_text()) for path in sorted(self._kept.glob("*.json"))]
        rows = rows_of(done)
        rows += skipped_rows(self._skipped(), rows)
        for row in rows:
            print(line_of(row))
        figures = {
            "what": "time to data parallelism's loss at nine tenths of its steps",
            "rows": rows,
            "exposure": self._told("exposure"),
            "pace": self._told("pace"),
        }
        write_record(self._asked.output, join_records(self._asked.output, figures))
        write_page(self._asked.output.with_suffix(".html"), "Training across slow links", charts_of(done))

    def _train(self) -> None:
        """Seeds outermost, so that a stop leaves whole comparisons."""
        missing = 0
        for group in self._groups():
            cells = [cell for cell in group if skip_reason(cell.strategy, cell.cluster) is None]
            left = [cell for cell in cells if not (self._kept / f"{cell.key()}.json").exists()]
            if left and time.time() < self._until:
                order = {"cells": [asdict(cell) for cell in left], "until": self._until}
                try:
                    self._launch("train_cells", cells[0].cluster, order | {"folder": str(self._kept)})
                except SynclineError as error:
                    print(f"Ranks failed on {cells[0].cluster}: {error}")
            missing += sum(not (self._kept / f"{cell.key()}.json").exists() for cell in left)
        if missing:
            print(f"{missing} cells are left: call this again.")

    def _skipped(self) -> list[dict[str, Any]]:
        """The cells that cannot run here, with the reason."""
        cells = [cell for group in self._groups() for cell in group] if "cells" in self._asked.parts else []
        reasons = [(cell, skip_reason(cell.strategy, cell.cluster)) for cell in cells]
        return [asdict(cell) | {"reason": reason} for cell, reason in reasons if reason is not None]

    def _groups(self) -> Iterator[list[Cell]]:
        """The cells of a cluster with limited links, a task and a seed."""
        for seed in range(self._asked.seeds):
            for cluster, task in self._settings():
                if is_limited(cluster):
                    names = contenders(cluster)
                    yield [
                        Cell(cluster=cluster, strategy=name, seed=seed, **asdict(task))
                        for name in names
                        if not self._asked.only or name in self._asked.only
                    ]

    def _settings(self) -> Iterator[tuple[str, Task]]:
        """What was asked for."""
        for cluster in self._asked.clusters:
            for task in TASKS[cluster]:
                if not self._asked.models or task.model in self._asked.models:
                    yield cluster, task

    def _exposure(self) -> None:
        for cluster, task in self._settings():
            if is_limited(cluster):
                self._measure("exposure", cluster, task, {"wait": WAIT})

    def _pace(self) -> None:
        for cluster, task in self._settings():
            if not is_limited(cluster):
                order = {"strategies": PACED, "rounds": PACE_ROUNDS, "block": PACE_BLOCK}
                self._measure("pace", cluster, task, order)

    def _measure(self, kind: str, cluster: str, task: Task, order: dict[str, Any]) -> None:
        setting = {"model": task.model, "batch": task.batch, "cluster": cluster}
        path = self._kept / f"{kind} {task.model} {task.batch} {cluster}".replace("/", "-")
        if path.exists() or time.time() > self._until:
            return
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result"
            self._launch(f"measure_{kind}", cluster, setting | order | {"result": str(result)})
            path.write_text(json.dumps(setting | json.loads(result.read_text()) | {"measured": origin()}))
        print(path.read_text())

    def _told(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self._kept.glob(f"{kind} *"))]

    def _launch(self, function: str, cluster: str, order: dict[str, Any]) -> None:
        logs = Path(tempfile.mkdtemp())
        emulation = parse_emulation(cluster)
        launch_emulated(f"daso_cells:{function}", json.dumps(order), emulation=emulation, logs=logs)
        shutil.rmtree(logs)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parts = ["pace", "exposure", "cells"]
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    models = sorted({task.model for tasks in TASKS.values() for task in tasks})
    parser.add_argument("--clusters", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--models", nargs="+", default=[], choices=models)
    parser.add_argument("--only", nargs="+", default=[], help="strategies, with their options")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results/daso.json")
    return parser.parse_args()


if __name__ == "__main__":
    Benchmark(_parse()).run()
