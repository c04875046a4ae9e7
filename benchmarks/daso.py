"""Training across slow links: time to the same loss, by strategy, on emulated nodes.

    python benchmarks/daso.py [--parts cells exposure pace] [--clusters 2x1@100mbit 2x2@1gbit] \
        [--models gpt2-tiny:seq=32] [--only data daso] [--seeds 3] [--steps 150] [--batch 8] \
        [--clip-norm 1] [--sgd-rate 0.1] [--minutes 5] [-o FILE]

A *cell* is one training: a cluster, a model, a strategy and a seed. All strategies of a cluster, model and
seed start with the same weights and train on the same batches for as many steps, on the same ranks, one
after another. The target is the loss that plain data parallelism has after nine tenths of its steps.

*exposure* is how long a rank stands still for an exchange that fits into its wait, beside a blocking one.
*pace* is the time of a step beside data parallelism's where links are not limited, in alternating blocks.

What is done is kept in a folder beside the record and not done again: after `--minutes` the script stops, and
the next call goes on, perhaps with other options. The record is made of all that was kept. Emulation
needs root.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from daso_cells import Cell
from daso_rows import BASELINE, line_of, rows_of
from record import write_record
from syncline.cluster.emulation import parse_emulation
from syncline.errors import SynclineError
from syncline.launch.emulated import launch_emulated

CLUSTERS = ("2x1@100mbit", "2x1@1gbit", "2x1", "2x2@100mbit", "2x2@1gbit", "2x2")
PACED = (BASELINE, "daso:warm-up=0", "daso:warm-up=0,sync-every=auto")
PACE_ROUNDS, PACE_BLOCK = 12, 16


def contenders(cluster: str) -> list[str]:
    """The strategies that are compared on a cluster; without a limit, those that must not lose there."""
    emulation = parse_emulation(cluster)
    if emulation.bits_per_s is None:
        return [BASELINE, "daso", "daso:sync-every=auto"]
    ranks = emulation.ranks_per_node
    hybrid = [f"sharded:group={ranks}"] if ranks > 1 else []
    return [
        BASELINE,
        "daso",
        "daso:sync-every=auto",
        "daso:sync-every=auto,wire=bf16",
        "daso:sync-every=auto,merge=paper",
        *hybrid,
        "local-sgd",
        "diloco:sync-every=16",
        "data:compress=fp16",
        "data:compress=powersgd",
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
        rows = rows_of([json.loads(path.read_text()) for path in sorted(self._kept.glob("*.json"))])
        for row in rows:
            print(line_of(row))
        figures = {
            "what": "time to data parallelism's loss at nine tenths of its steps",
            "skipped": {} if importlib.util.find_spec("torchft") else {"torchft": "not installed"},
            "rows": rows,
            "exposure": self._told("exposure"),
            "pace": self._told("pace"),
        }
        write_record(self._asked.output, figures)

    def _train(self) -> None:
        """Seeds outermost, so that a stop leaves whole comparisons."""
        missing = 0
        for cells in self._groups():
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

    def _groups(self) -> Iterator[list[Cell]]:
        """The cells of a cluster, model and seed."""
        asked = self._asked
        for seed in range(asked.seeds):
            for cluster in asked.clusters:
                for model in asked.models:
                    names = [name for name in contenders(cluster) if not asked.only or name in asked.only]
                    yield [
                        Cell(
                            cluster=cluster,
                            model=model,
                            strategy=name,
                            seed=seed,
                            steps=asked.steps,
                            batch=asked.batch,
                            clip_norm=asked.clip_norm,
                            sgd_rate=asked.sgd_rate,
                        )
                        for name in names
                    ]

    def _exposure(self) -> None:
        for cluster in self._asked.clusters:
            if "@" in cluster:
                self._measure("exposure", cluster, {"wait": self._asked.wait})

    def _pace(self) -> None:
        for cluster in self._asked.clusters:
            if "@" not in cluster:
                order = {"strategies": PACED, "rounds": PACE_ROUNDS, "block": PACE_BLOCK}
                self._measure("pace", cluster, order)

    def _measure(self, kind: str, cluster: str, order: dict[str, Any]) -> None:
        for model in self._asked.models:
            setting = {"model": model, "batch": self._asked.batch, "cluster": cluster}
            name = f"{kind} {model} {self._asked.batch} {cluster}".replace("/", "-")
            path = self._kept / name
            if path.exists() or time.time() > self._until:
                continue
            with tempfile.TemporaryDirectory() as folder:
                result = Path(folder) / "result"
                self._launch(f"measure_{kind}", cluster, setting | order | {"result": str(result)})
                path.write_text(json.dumps(setting | json.loads(result.read_text())))
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
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS))
    parser.add_argument("--models", nargs="+", default=["gpt2-tiny:seq=32"])
    parser.add_argument("--only", nargs="+", default=[], help="strategies, with their options")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clip-norm", type=float, help="of gradients; not clipped when left out")
    parser.add_argument("--sgd-rate", type=float, help="SGD of this rate, not the model's usual optimizer")
    parser.add_argument("--wait", type=int, default=16, help="steps that an exchange fits in, for exposure")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results/daso.json")
    return parser.parse_args()


if __name__ == "__main__":
    Benchmark(_parse()).run()
