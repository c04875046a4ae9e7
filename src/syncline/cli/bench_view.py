"""Showing a benchmark on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncline.amounts import show_bytes, show_seconds
from syncline.benchmark.entries import Entry
from syncline.benchmark.verdict import Verdict

_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("strategy", "left"),
    ("status", "left"),
    ("step", "right"),
    ("±", "right"),
    ("samples/s", "right"),
    ("loss", "right"),
    ("memory", "right"),
    ("sent", "right"),
)


def show_contests(found: Sequence[tuple[Verdict, Sequence[Entry]]], console: Console) -> None:
    """For each place the table of its entries and the verdict."""
    for verdict, entries in found:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for name, side in _COLUMNS:
            # On a narrow terminal names go on in a second line, and no figure is cut.
            is_name = side == "left"
            table.add_column(name, justify=side, no_wrap=not is_name, overflow="fold")
        for entry in sorted(entries, key=lambda one: one.sample_s):
            table.add_row(*_cells(entry))
        console.print(table)
        console.print("≈ inexact. Memory: fullest rank. Sent: in a step, by all ranks.", style="dim")
        console.print(verdict.headline, markup=False, highlight=False, style="bold")
        for line in verdict.details:
            console.print(f"  {line}", markup=False, highlight=False)


def _cells(entry: Entry) -> list[str]:
    step = entry.step
    return [
        escape(entry.short if entry.exact else f"≈ {entry.short}"),
        entry.status,
        show_seconds(step.value) if step else "",
        step.show_spread() if step else "",
        f"{entry.samples_per_s:.0f}" if entry.samples_per_s else "",
        f"{entry.loss:.4f}" if entry.loss is not None else "",
        show_bytes(entry.peak_bytes) if entry.peak_bytes is not None else "",
        show_bytes(entry.sent_bytes) if entry.sent_bytes is not None else "",
    ]
