"""Showing a benchmark on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncline.amounts import show_bytes, show_seconds
from syncline.benchmark.entries import Entry
from syncline.benchmark.verdict import Verdict


def show_contests(found: Sequence[tuple[Verdict, Sequence[Entry]]], console: Console) -> None:
    """For each place the table of its entries and the verdict."""
    for verdict, entries in found:
        table = Table("strategy", "exact", "step", "samples/s", "loss", "memory", "sent", "status")
        for entry in sorted(entries, key=lambda one: one.step.value if one.step else float("inf")):
            table.add_row(*_cells(entry))
        console.print(table)
        console.print(verdict.headline, markup=False, highlight=False, style="bold")
        for line in verdict.details:
            console.print(f"  {line}", markup=False, highlight=False)


def _cells(entry: Entry) -> list[str]:
    return [
        escape(entry.name),
        "yes" if entry.exact else "no",
        f"{show_seconds(entry.step.value)} ±{entry.step.spread:.0%}" if entry.step else "",
        f"{entry.samples_per_s:.1f}" if entry.samples_per_s else "",
        f"{entry.loss:.4f}" if entry.loss is not None else "",
        show_bytes(entry.peak_bytes) if entry.peak_bytes is not None else "",
        show_bytes(entry.sent_bytes) if entry.sent_bytes is not None else "",
        entry.status,
    ]
