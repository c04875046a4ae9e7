"""The table of all entries: what a cell shows, and what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from syncline.amounts import show_bytes, show_seconds
from syncline.benchmark.entries import Entry
from syncline.benchmark.scaling import Scaled
from syncline.benchmark.verdict import find_usual


@dataclass(frozen=True, slots=True)
class TableCell:
    """Text, and the value that it is sorted by."""

    text: str
    value: float | str


@dataclass(frozen=True, slots=True)
class TableRow:
    """One entry."""

    entry: Entry
    cells: tuple[TableCell, ...]


HEADINGS = (
    ("strategy", "as the suite names it"),
    ("step", "median of groups of steps, with the interval of 95 %"),
    ("samples/s", "in the long run"),
    ("× data", "speed relative to the strategy data"),
    ("loss", "evaluation loss at the end"),
    ("memory", "peak of the fullest rank"),
    ("sent a step", "by all ranks"),
    ("exposed", "communication that nothing hides, of an inspected step"),
    ("bubble", "waiting while another rank computes, of an inspected step"),
    ("to target", "seconds of training until the target loss"),
    ("samples to target", "from which it learned until then"),
    ("device-s", "devices times these seconds; on a CPU a core is a device"),
    ("MFU", "model FLOPs of what the devices reach in matrix products"),
    ("efficiency", "speed for each device, relative to the reference"),
    ("predicted", "step time by the planner's cost model, not fitted to this machine"),
    ("predicted memory", "peak by the same model, without what a process takes before any model"),
)


def table_rows(entries: Sequence[Entry], scaled: Sequence[Scaled]) -> list[TableRow]:
    """Measured entries first, the fastest at the top."""
    usual = find_usual(entries)
    efficiencies = {id(one.entry): one.efficiency for one in scaled}
    order = sorted(entries, key=lambda one: one.sample_s)
    return [TableRow(one, _cells(one, usual, efficiencies.get(id(one)))) for one in order]


def _cells(entry: Entry, usual: Entry | None, efficiency: float | None) -> tuple[TableCell, ...]:
    step = entry.step
    relative = usual.sample_s / entry.sample_s if usual and step else None
    parts = entry.breakdown
    whole = sum(parts.values()) if parts else 0.0
    shares = {name: value / whole for name, value in parts.items()} if parts and whole else {}
    return (
        TableCell(entry.name, entry.name),
        TableCell(_step(entry), step.value if step else float("inf")),
        _cell(entry.samples_per_s, lambda value: f"{value:.1f}"),
        _cell(relative, lambda value: f"{value:.2f}"),
        _cell(entry.loss, lambda value: f"{value:.4f}"),
        _cell(entry.peak_bytes, show_bytes),
        _cell(entry.sent_bytes, show_bytes),
        _cell(shares.get("exposed_comm_s"), lambda value: f"{value:.0%}"),
        _cell(shares.get("bubble_s"), lambda value: f"{value:.0%}"),
        _cell(entry.median_of_all(lambda row: row.time_to_target_s), show_seconds),
        _cell(entry.median_of_all(lambda row: row.samples_to_target), lambda value: f"{value:.0f}"),
        _cell(entry.median_of_all(lambda row: row.device_s_to_target), lambda value: f"{value:.1f}"),
        _cell(entry.median(lambda row: row.flop_utilisation), lambda value: f"{value:.0%}"),
        _cell(efficiency, lambda value: f"{value:.0%}"),
        _cell(entry.median(lambda row: row.predicted_step_s), show_seconds),
        _cell(entry.median(lambda row: row.predicted_peak_memory_bytes), show_bytes),
    )


def _step(entry: Entry) -> str:
    if entry.step is None:
        return entry.status
    return f"{show_seconds(entry.step.value)} ±{entry.step.show_spread()}"


def _cell(value: float | None, show: Callable[[float], str]) -> TableCell:
    return TableCell("–", float("inf")) if value is None else TableCell(show(value), value)
