"""What changed from an old result to a new one, and whether something got worse beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from syncline.benchmark.cells import Cell, list_cells
from syncline.benchmark.entries import Entry, Place, make_entries
from syncline.benchmark.row import FRAMEWORK, Row, brief, read_rows
from syncline.benchmark.suite import Suite
from syncline.errors import ConfigError

STEP_TOLERANCE = 0.1
"""Step times of the same code differ by so much between two calls of a benchmark on a quiet machine."""
MEMORY_TOLERANCE = 0.1
SENT_TOLERANCE = 0.05
EXACT_LOSS_TOLERANCE = 1e-3
LOSS_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure of one entry, before and now; larger is worse."""

    name: str
    place: str
    figure: str
    old: float | None
    new: float | None
    tolerance: float
    """Relative changes up to this are noise."""
    note: str = ""

    @property
    def relative(self) -> float | None:
        """The change in parts of the old figure."""
        if self.old is None or self.new is None or not self.old:
            return None
        return self.new / self.old - 1

    @property
    def is_worse(self) -> bool:
        """Whether this is a regression."""
        if self.old is not None and self.new is None:
            return True
        return self.relative is not None and self.relative > self.tolerance

    @property
    def is_better(self) -> bool:
        """Whether this is a gain."""
        return self.relative is not None and self.relative < -self.tolerance


def check_comparable(suite: Suite, folder: Path) -> None:
    """Refuse to compare with the results in a folder, before anything is run.

    Raises:
        RunFolderError: They cannot be read.
        ConfigError: They have figures of nothing that the suite runs.
    """
    planned = {_key_of(cell, suite) for cell in list_cells(suite)}
    if not any(one.step is not None and _key(one) in planned for one in make_entries(read_rows(folder))):
        raise nothing_common(folder, f"the suite '{suite.name}'")


def nothing_common(old: Path, new: str) -> ConfigError:
    """What is wrong with a comparison of other things."""
    return ConfigError(
        f"{old} has figures of no cell of {new}, so there is nothing to compare.\n"
        "Compare benchmarks of the same models, strategies, ranks, batch and scaling."
    )


def compare(old: Sequence[Entry], new: Sequence[Entry]) -> list[Change]:
    """All figures of the entries that both have; one that lost those of a seed counts as worse."""
    known = {_key(one): one for one in old}
    pairs = [(known[_key(one)], one) for one in new if _key(one) in known]
    return [change for before, now in pairs for change in _changes(before, now)]


def _key(entry: Entry) -> tuple[object, ...]:
    return entry.framework, entry.label, entry.place, entry.batch


def _key_of(cell: Cell, suite: Suite) -> tuple[object, ...]:
    """What the key of a cell's entry will be."""
    place = Place(model=cell.model, cluster=cell.cluster, world_size=cell.world_size, scaling=suite.scaling)
    return FRAMEWORK, cell.strategy, place, cell.batch


def _changes(old: Entry, new: Entry) -> list[Change]:
    where = {"name": new.name, "place": new.place.title}
    if old.step is None:
        return []
    ran = {row.seed for row in old.ok}
    lost = [
        Change(**where, figure="step_s", old=old.step.value, new=None, tolerance=0.0, note=_failure(row))
        for row in new.rows
        if row.status != "ok" and row.seed in ran
    ]
    if new.step is None:
        return lost
    noise = STEP_TOLERANCE + old.step.noise + new.step.noise
    loss = EXACT_LOSS_TOLERANCE if new.exact else LOSS_TOLERANCE
    figures = [
        ("step_s", old.step.value, new.step.value, noise),
        ("peak_memory_bytes", old.peak_bytes, new.peak_bytes, MEMORY_TOLERANCE),
        ("sent_bytes", old.sent_bytes, new.sent_bytes, SENT_TOLERANCE),
        ("loss", old.loss, new.loss, loss),
    ]
    return lost + [
        Change(**where, figure=figure, old=before, new=now, tolerance=tolerance)
        for figure, before, now, tolerance in figures
        if before is not None
    ]


def _failure(row: Row) -> str:
    return f"seed {row.seed} {row.status}: {brief(row.reason)}"
