"""One line for each cell while a benchmark runs, with the time left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.status import Status

from syncline.benchmark.cells import Cell
from syncline.benchmark.entries import end_loss
from syncline.benchmark.row import Row, brief


class BenchProgress:
    """Lines on stderr; on a terminal the cell that runs is shown too."""

    def __init__(self, cells: Sequence[Cell], *, done: int) -> None:
        self._total = len(cells)
        self._done = done
        self._ran = 0
        self._started = time.monotonic()
        self._width = max((len(cell.strategy) for cell in cells), default=0)
        # Ranks inherit stderr, which goes elsewhere while they run: keep the terminal itself.
        self._file = os.fdopen(os.dup(2), "w", encoding="utf-8")
        self._console = Console(file=self._file)
        self._status: Status | None = None
        if done:
            self._print(f"{done} of {self._total} cells are done already")

    def __enter__(self) -> BenchProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_status()
        self._file.close()

    def begin(self, cell: Cell) -> None:
        """A cell starts."""
        if self._console.is_terminal:
            what = f"{cell.model} {cell.strategy} x{cell.world_size} on {cell.cluster}, seed {cell.seed}"
            self._status = self._console.status(f"{what} ... {self._left()}")
            self._status.start()

    def end(self, row: Row) -> None:
        """A cell is over."""
        self._stop_status()
        self._done += 1
        self._ran += 1
        self._print(
            f"[{self._done:>{len(str(self._total))}}/{self._total}] {self._told(row)}  {self._left()}"
        )

    def _told(self, row: Row) -> str:
        where = f"{row.model}  {row.label:<{self._width}}  {row.world_size} x {row.cluster}  seed {row.seed}"
        loss = end_loss(row)
        if row.status != "ok" or row.sustained_step_s is None or loss is None:
            return f"{where}  {row.status}: {brief(row.reason)}"
        return (
            f"{where}  {row.sustained_step_s * 1e3:7.1f} ms/step  "
            f"{row.sustained_samples_per_s:7.1f} samples/s  loss {loss:.4f}"
        )

    def _left(self) -> str:
        if not self._ran:
            return ""
        each_s = (time.monotonic() - self._started) / self._ran
        return f"{timedelta(seconds=round(each_s * (self._total - self._done)))} left"

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._file.flush()

    def _stop_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
