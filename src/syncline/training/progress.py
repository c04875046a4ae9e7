"""Showing a run while it goes on: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

LINE_EVERY_S = 10.0


class ProgressView(Protocol):
    """Shows how far the run is."""

    def show(self, *, step: int, loss: float, samples_per_s: float) -> None:
        """Show a finished step."""
        ...

    def tell_change(self, text: str, *, ranks: int) -> None:
        """Tell who was lost or has come, and that the run is one of so many ranks now."""
        ...

    def close(self) -> None:
        """Leave the screen tidy."""
        ...


class BarView:
    """One live line with loss, speed and time left."""

    def __init__(self, title: str, *, ranks: int, steps: int, done: int) -> None:
        console = Console(stderr=True)
        # The title is a line of its own: names of models and options may be long, and figures matter more.
        console.print(f"{title} x{ranks}", style="bold", markup=False, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} samples/s"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("", total=steps, completed=done, loss="-", speed="-")
        self._bar.start()

    def show(self, *, step: int, loss: float, samples_per_s: float) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step, loss=f"{loss:.4f}", speed=f"{samples_per_s:.1f}")

    def tell_change(self, text: str, *, ranks: int) -> None:
        """Print a line above the bar; the title above that is of the start."""
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()


class LineView:
    """A line at the first step, every ten seconds, and at the last step."""

    def __init__(self, title: str, *, ranks: int, steps: int, done: int) -> None:
        self._title = title
        self._ranks = ranks
        self._steps = steps
        self._first = done + 1
        self._started = time.monotonic()
        self._last_shown = 0.0

    def show(self, *, step: int, loss: float, samples_per_s: float) -> None:
        """Print a line when one is due."""
        now = time.monotonic()
        if step not in (self._first, self._steps) and now - self._last_shown < LINE_EVERY_S:
            return
        self._last_shown = now
        made = step - self._first + 1
        left = timedelta(seconds=round((now - self._started) / made * (self._steps - step)))
        print(
            f"{self._title} x{self._ranks}: step {step}/{self._steps}  loss {loss:.4f}  "
            f"{samples_per_s:.1f} samples/s  {left} left",
            file=sys.stderr,
            flush=True,
        )

    def tell_change(self, text: str, *, ranks: int) -> None:
        """Print a line."""
        self._ranks = ranks
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to tidy up."""


def progress_view(title: str, *, ranks: int, steps: int, done: int) -> ProgressView:
    """A bar where someone can watch it, lines in a log."""
    kind = BarView if sys.stderr.isatty() else LineView
    return kind(title, ranks=ranks, steps=steps, done=done)


def announce(lines: Iterable[str]) -> None:
    """Tell the user something about the run, a line each."""
    console = Console(stderr=True)
    for line in lines:
        console.print(line, markup=False, highlight=False)


def announce_start(ranks: int, folder: Path) -> None:
    """Say that something happens: ranks take seconds to start."""
    print(
        f"Starting {ranks} rank{'s'[: ranks > 1]}; the run's folder is {folder}", file=sys.stderr, flush=True
    )
