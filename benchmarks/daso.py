"""Training across slow links: time to the same loss, by strategy, on emulated nodes.

    python benchmarks/daso.py [--clusters 2x1@100mbit,2x2@1gbit] [--models gpt2-tiny] [--only data,daso] \
        [--seeds 3] [--steps 200] [--minutes 5] [-o FILE]

A cell is one run of `syncline train`: a cluster, a model, a strategy and a seed. All strategies of a
cluster and model have the same weights, batches and number of steps; within a seed they take turns, so that
a busy machine slows all alike. The target is the loss that plain data parallelism has, averaged over seeds,
after nine tenths of its steps. Cells that are done are kept beside the record and not run again: after
`--minutes` the script stops between cells, and the next call goes on. Emulation needs root.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from record import write_record
from syncline.cluster.device import rank_device
from syncline.cluster.emulation import parse_emulation
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import current_rank
from syncline.errors import SynclineError
from syncline.launch.emulated import launch_emulated
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.training.config import EvaluationConfig, ScheduleConfig, TrainConfig
from syncline.training.run import open_loop, prepare_run
from syncline.training.start import start_training
from syncline.training.stop_flag import StopFlag

BASELINE = "data"
CLUSTERS = ("2x1@100mbit", "2x1@1gbit", "2x1", "2x2@100mbit", "2x2@1gbit", "2x2")
MODELS = ("gpt2-tiny", "gpt2-tiny:width=256")
WINDOW = 10
"""Steps over which a loss is averaged."""


def contenders(cluster: str, wait: int) -> list[str]:
    """The strategies that are compared on a cluster."""
    ranks = parse_emulation(cluster).ranks_per_node
    hybrid = [f"sharded:group={ranks}"] if ranks > 1 else []
    return [
        BASELINE,
        f"daso:sync-every={2 * wait},wait={wait}",
        f"daso:sync-every={2 * wait},wait={wait},wire=bf16",
        "daso:sync-every=auto",
        f"daso:sync-every={2 * wait},wait={wait},merge=paper",
        "data:compress=fp16",
        "data:compress=powersgd",
        *hybrid,
        "local-sgd",
        "diloco:sync-every=16",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run."""

    cluster: str
    model: str
    strategy: str
    seed: int
    steps: int
    batch: int

    def key(self) -> str:
        """The name under which its result is kept."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, and tell what it came to."""
        config = TrainConfig(
            model=self.model,
            strategy=self.strategy,
            emulate=self.cluster,
            batch=self.batch,
            steps=self.steps,
            seed=self.seed,
            schedule=ScheduleConfig(shape="cosine", warmup_steps=self.steps // 20, floor=0.1),
            evaluation=EvaluationConfig(batches=8),
        )
        try:
            summary = start_training(config, folder).summary
        except SynclineError as error:
            return {"status": "failed", "reason": str(error)}
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if summary is None:
            raise TypeError("the process that starts ranks has the summary")
        return {
            "status": summary.status,
            "losses": [line["loss"] for line in lines],
            "time_s": [line["time_s"] for line in lines],
            "eval_loss": summary.eval_loss,
            "median_step_s": summary.median_step_s,
            "sent_bytes": summary.sent_bytes,
        }


def main() -> None:
    """Run the cells that are missing and time is left for; then write what there is."""
    arguments = _parse()
    kept = arguments.output.with_suffix(".cells")
    kept.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + 60 * arguments.minutes
    missing = 0
    for cell in _cells(arguments):
        path = kept / f"{cell.key()}.json"
        if path.exists():
            continue
        if time.monotonic() > deadline_s:
            missing += 1
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = cell.run(Path(folder) / "run")
        path.write_text(json.dumps({**asdict(cell), **result}))
    exposure = _exposure(arguments, kept, deadline_s)
    done = [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]
    wanted = {cell.key() for cell in _cells(arguments)}
    rows = _rows([each for each in done if Cell(**{k: each[k] for k in _fields()}).key() in wanted])
    for row in rows:
        print(_line(row))
    if missing:
        print(f"{missing} cells are left: call this again.")
    figures = {
        "what": "time to data parallelism's loss at nine tenths of its steps",
        "batch": arguments.batch,
        "steps": arguments.steps,
        "seeds": arguments.seeds,
        "missing_cells": missing,
        "skipped": {} if importlib.util.find_spec("torchft") else {"torchft": "not installed"},
        "rows": rows,
        "exposure": exposure,
    }
    write_record(arguments.output, figures)
    if not missing and not arguments.keep:
        shutil.rmtree(kept)


def _cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """Seeds outermost: strategies take turns, and a stop leaves whole comparisons."""
    for seed in range(arguments.seeds):
        for cluster in arguments.clusters.split(","):
            for model in arguments.models.split(";"):
                for strategy in contenders(cluster, arguments.wait):
                    if arguments.only and strategy.partition(":")[0] not in arguments.only.split(","):
                        continue
                    yield Cell(
                        cluster=cluster,
                        model=model,
                        strategy=strategy,
                        seed=seed,
                        steps=arguments.steps,
                        batch=arguments.batch,
                    )


def _fields() -> tuple[str, ...]:
    return ("cluster", "model", "strategy", "seed", "steps", "batch")


def _rows(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a strategy, over its seeds, beside the baseline of the same cluster and model."""
    rows = []
    for cluster, model in sorted({(each["cluster"], each["model"]) for each in done}):
        here = [each for each in done if (each["cluster"], each["model"]) == (cluster, model)]
        base = [each for each in here if each["strategy"] == BASELINE and each["status"] == "ok"]
        target = (
            statistics.fmean(_smooth(each)[int(0.9 * len(each["losses"]))] for each in base) if base else None
        )
        by_strategy = {each["strategy"]: [] for each in here}
        for each in here:
            by_strategy[each["strategy"]].append(each)
        base_row = _row(by_strategy.get(BASELINE, []), target, None)
        for strategy, cells in by_strategy.items():
            rows.append(
                {"cluster": cluster, "model": model, "strategy": strategy} | _row(cells, target, base_row)
            )
    return rows


def _row(cells: list[dict[str, Any]], target: float | None, base: dict[str, Any] | None) -> dict[str, Any]:
    good = [cell for cell in cells if cell["status"] == "ok"]
    if not good:
        return {"seeds": 0, "reason": cells[0].get("reason") if cells else None}
    times = [_time_to(cell, target) for cell in good]
    reached = [each for each in times if each is not None]
    row: dict[str, Any] = {
        "seeds": len(good),
        "reached": len(reached),
        "target_loss": target,
        "time_to_target_s": statistics.median(reached) if len(reached) == len(good) else None,
        "median_step_s": statistics.median(cell["median_step_s"] for cell in good),
        "total_s": statistics.median(cell["time_s"][-1] for cell in good),
        "final_loss": statistics.fmean(_smooth(cell)[-1] for cell in good),
        "eval_loss": statistics.fmean(cell["eval_loss"] for cell in good),
        "network_bytes": statistics.median(cell["sent_bytes"]["network"] for cell in good),
    }
    if base is not None and base.get("time_to_target_s") and row["time_to_target_s"]:
        row["less_time"] = 1 - row["time_to_target_s"] / base["time_to_target_s"]
        row["step_ratio"] = row["median_step_s"] / base["median_step_s"]
        row["total_ratio"] = row["total_s"] / base["total_s"]
        row["eval_loss_ratio"] = row["eval_loss"] / base["eval_loss"]
    return row


def _smooth(cell: dict[str, Any]) -> np.ndarray:
    """The mean loss of the last steps, at each step; of fewer at the start."""
    losses = np.array(cell["losses"])
    sums = np.cumsum(losses)
    sums[WINDOW:] = sums[WINDOW:] - sums[:-WINDOW]
    return sums / np.minimum(np.arange(len(losses)) + 1, WINDOW)


def _time_to(cell: dict[str, Any], target: float | None) -> float | None:
    below = np.nonzero(_smooth(cell)[WINDOW - 1 :] <= target)[0] if target is not None else []
    return cell["time_s"][int(below[0]) + WINDOW - 1] if len(below) else None


def _line(row: dict[str, Any]) -> str:
    head = f"{row['cluster']:12} {row['model']:22} {row['strategy']:46}"
    if not row["seeds"]:
        return f"{head} failed: {row['reason']}"
    less = f"{row['less_time']:+.0%} time" if "less_time" in row else "-"
    reached_s = row["time_to_target_s"] or float("nan")
    return (
        f"{head} {row['median_step_s'] * 1e3:7.1f} ms  to target {reached_s:6.2f} s  less {less}  "
        f"eval {row['eval_loss']:.4f}  {row['network_bytes'] / 1e6:7.1f} MB"
    )


def _exposure(arguments: argparse.Namespace, kept: Path, deadline_s: float) -> list[dict[str, Any]]:
    """How long a rank stands still for an exchange that fits in its wait, beside a blocking one."""
    told = []
    for cluster in arguments.clusters.split(","):
        path = kept / f"exposure-{cluster}"
        if not path.exists() and time.monotonic() < deadline_s and "@" in cluster:
            with tempfile.TemporaryDirectory() as folder:
                order = {"model": arguments.models.split(";")[0], "batch": arguments.batch, "folder": folder}
                launch_emulated(
                    "daso:measure_exposure",
                    json.dumps(order),
                    emulation=parse_emulation(cluster),
                    logs=Path(folder) / "logs",
                )
                shutil.copy(Path(folder) / "exposure.json", path)
        if path.exists():
            told.append({"cluster": cluster} | json.loads(path.read_text()))
    return told


def measure_exposure(argument: str) -> None:
    """What each rank does: some blocking steps, then steps with a wait that exchanges fit in."""
    order = json.loads(argument)
    rank = current_rank()
    device = rank_device(rank)
    blocking, cycles, wait = 20, 10, 16
    config = TrainConfig(
        model=order["model"],
        strategy=f"daso:warm-up={blocking},cool-down=0,review-every=1000,sync-every={wait + 4},wait={wait}",
        ranks=rank.world_size,
        batch=order["batch"],
        steps=blocking + cycles * (wait + 4),
        evaluation=EvaluationConfig(batches=0),
    )
    with process_group(device):
        run = prepare_run(config, rank, device)
        with open_loop(run, Path(order["folder"]), None, StopFlag()) as loop:
            for _ in range(blocking):
                loop.train_once()
            step = run.step
            if not isinstance(step, CyclingStep):
                raise TypeError("daso's step is measured")
            blocked_s = step.exposed_s / blocking
            before_s = step.exposed_s
            loop.run()
            exposed_s = (step.exposed_s - before_s) / cycles
        if rank.is_first:
            told = {"blocking_exchange_s": blocked_s, "exposed_s": exposed_s, "ratio": exposed_s / blocked_s}
            (Path(order["folder"]) / "exposure.json").write_text(json.dumps(told))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--models", default=";".join(MODELS), help="separated by semicolons")
    parser.add_argument("--only", default="", help="names of strategies, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--wait", type=int, default=4, help="of daso, in steps; it exchanges every twice as many"
    )
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--keep", action="store_true", help="keep the cells of a complete record")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results/daso.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
