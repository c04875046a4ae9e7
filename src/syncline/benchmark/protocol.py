"""Running a suite: every cell once, whatever happens to the others."""

from __future__ import annotations

import signal
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from syncline.benchmark.cells import list_cells
from syncline.benchmark.environment import look_around, write_environment
from syncline.benchmark.folder import open_folder
from syncline.benchmark.predictions import Predictions
from syncline.benchmark.progress import BenchProgress
from syncline.benchmark.row import RESULTS_FILE, Row, append_row, read_rows
from syncline.benchmark.running import Bench, StoppedError, run_cell
from syncline.benchmark.suite import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a benchmark ended."""

    folder: Path
    rows: list[Row]
    signal_number: int | None = None
    """The signal that stopped it."""


def run_suite(suite: Suite, folder: Path, *, resume: bool = False) -> Ran:
    """Train every cell that is not done; all have the same weights, data order and budget.

    Each cell is a run of its own in `folder/runs`, and a row in `folder/results.jsonl` as soon as it is over.
    """
    done = {row.cell for row in open_folder(suite, folder, resume=resume) if row.status == "ok"}
    signal_number = None
    try:
        _run_cells(suite, folder, done)
    except StoppedError as stopped:
        signal_number = stopped.signal_number
    except KeyboardInterrupt:
        # Between two trainings: none of them was there to take the signal.
        signal_number = signal.SIGINT
    rows = read_rows(folder) if (folder / RESULTS_FILE).exists() else []
    return Ran(folder=folder, rows=rows, signal_number=signal_number)


def _run_cells(suite: Suite, folder: Path, done: Container[str]) -> None:
    cells = list_cells(suite)
    environment = look_around()
    write_environment(environment, folder)
    bench = Bench(suite=suite, folder=folder, environment=environment, predictions=Predictions(suite))
    with BenchProgress(cells, done=len([cell for cell in cells if cell.name in done])) as progress:
        for cell in cells:
            if cell.name in done:
                continue
            progress.begin(cell)
            row = run_cell(bench, cell)
            append_row(row, folder)
            progress.end(row)
