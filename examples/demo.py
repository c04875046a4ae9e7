"""Trains a small language model with two strategies and sets them side by side: `make demo`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from syncline.cli.units import show_bytes, show_seconds
from syncline.training.config import EvaluationConfig, TrainConfig
from syncline.training.start import start_training
from syncline.training.summary import Summary

FOLDER = Path(".demo")
STRATEGIES = ("data", "sharded")
STEPS = 60


def main() -> None:
    """Train, then compare."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"Training gpt2-tiny on 2 ranks for {STEPS} steps, once with each strategy.", file=sys.stderr)
    summaries = [run(strategy) for strategy in STRATEGIES]
    table = Table("strategy", "exact", "step", "samples/s", "loss", "eval", "memory", "sent")
    for summary in summaries:
        table.add_row(*cells(summary))
    Console().print(table)
    print("memory: peak of a rank; sent: by all ranks in all steps.")
    print(f"Each run's metrics, checkpoints and logs are in {FOLDER}/.")


def run(strategy: str) -> Summary:
    """One training; both see the same weights, batches and budget."""
    config = TrainConfig(
        model="gpt2-tiny",
        strategy=strategy,
        ranks=2,
        batch=32,
        steps=STEPS,
        evaluation=EvaluationConfig(batches=4),
    )
    ended = start_training(config, FOLDER / strategy)
    if ended.summary is None or ended.signal_number is not None:
        sys.exit("stopped")
    return ended.summary


def cells(summary: Summary) -> list[str]:
    """A row of the comparison."""
    return [
        summary.strategy,
        "yes" if summary.exact else "no",
        show_seconds(summary.median_step_s or 0.0),
        f"{summary.samples_per_s or 0.0:.0f}",
        f"{summary.final_loss:.4f}",
        f"{summary.eval_loss:.4f}",
        show_bytes(max(summary.peak_memory_bytes or [0])),
        show_bytes(sum((summary.sent_bytes or {}).values())),
    ]


if __name__ == "__main__":
    main()
