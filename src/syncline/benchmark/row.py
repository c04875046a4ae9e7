"""`results.jsonl`: one line for each cell, with all that a report needs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from syncline.errors import RunFolderError
from syncline.training.summary import Summary

RESULTS_FILE = "results.jsonl"
FRAMEWORK = "syncline"
"""Whose strategies rows are, unless they say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Summary):
    """A run's summary, and what the benchmark adds to it; None where a figure was not measured."""

    cell: str
    """The name of the cell, and of its run's folder."""
    label: str
    """The strategy as the suite writes it."""
    framework: str = FRAMEWORK
    start: str | None = None
    """The date of the start that ran it, as in `environment.json`."""
    seed: int
    batch: int
    """Global."""
    scaling: str
    target_loss: float | None = None
    devices: float
    """What the run computes on: accelerators, or on a CPU the cores that its ranks use together."""
    group_step_s: list[float] = field(default_factory=list)
    """Means of groups of steps, as long as the strategy's period; inspected steps left out."""
    sustained_step_s: float | None = None
    """Their median: what a step takes in the long run."""
    step_s_low: float | None = None
    step_s_high: float | None = None
    """The interval of 95 % of that."""
    sustained_samples_per_s: float | None = None
    flops_per_step: float | None = None
    """Of the model itself, whatever a strategy computes twice."""
    flop_utilisation: float | None = None
    """Of what the devices reach in large matrix products."""
    breakdown: dict[str, float] | None = None
    """Seconds of an inspected step: compute_s, exposed_comm_s, bubble_s, overhead_s, data_s."""
    memory_by_kind: dict[str, int] | None = None
    """Of the rank with the highest peak: weights, gradients, optimizer_state, activations, other."""
    device_s_to_target: float | None = None
    curve: list[list[float]] = field(default_factory=list)
    """Samples, seconds of training and loss, step by step."""
    timeline: list[dict[str, Any]] = field(default_factory=list)
    """One inspected step of each rank as spans by kind."""

    @property
    def sent_bytes_per_step(self) -> dict[str, float] | None:
        """By level, all ranks together; start-up included."""
        if self.sent_bytes is None or not self.steps:
            return None
        return {level: count / self.steps for level, count in self.sent_bytes.items()}

    @property
    def peak_bytes(self) -> int | None:
        """Of the rank that takes most."""
        return max(self.peak_memory_bytes) if self.peak_memory_bytes else None


def brief(reason: str | None) -> str:
    """What a reason says in one line, for where there is no room for more; it may be empty or missing."""
    return next((line for line in (reason or "").splitlines() if line.strip()), "no reason was given")


def append_row(row: Row, folder: Path) -> None:
    """Add a row to the results of a folder."""
    with (folder / RESULTS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def drop_half_row(folder: Path) -> None:
    """Make results fit to be added to, when a crash has left the last row half-written."""
    path = folder / RESULTS_FILE
    content = path.read_bytes()
    if len(_whole_lines(content)) < len(content):
        os.truncate(path, len(_whole_lines(content)))


def _whole_lines(content: bytes) -> bytes:
    """Without a last line that has no end: it is still being written, or never was."""
    return content[: content.rfind(b"\n") + 1]


def read_rows(folder: Path) -> list[Row]:
    """The rows of a folder; of a cell that was run again, the last."""
    path = folder / RESULTS_FILE
    try:
        text = _whole_lines(path.read_bytes()).decode()
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"There is no {RESULTS_FILE} in {folder}, so there is no benchmark in it.\n"
            "Name a folder that `syncline bench` wrote."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}\nName a folder that `syncline bench` wrote."
        ) from None
    rows: dict[str, Row] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        row = _read(line, path, number)
        rows.pop(row.cell, None)
        rows[row.cell] = row
    return list(rows.values())


def _read(line: str, path: Path, number: int) -> Row:
    try:
        values = json.loads(line)
        unknown = sorted(set(values) - {one.name for one in fields(Row)})
        if unknown:
            raise ValueError(f"unknown key {unknown[0]}")
        return Row(**values)
    except (ValueError, TypeError) as error:
        raise RunFolderError(f"{path}, line {number}, cannot be read: {error}") from None
