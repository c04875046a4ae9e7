"""What changed from an old result to a new one, and whether something got worse beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.benchmark.entries import Entry

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


def compare(old: Sequence[Entry], new: Sequence[Entry]) -> list[Change]:
    """All figures of the entries that both have; one that lost its figures counts as worse."""
    known = {_key(one): one for one in old}
    pairs = [(known[_key(one)], one) for one in new if _key(one) in known]
    return [change for before, now in pairs for change in _changes(before, now)]


def _key(entry: Entry) -> tuple[object, ...]:
    return entry.framework, entry.label, entry.place, entry.batch


def _changes(old: Entry, new: Entry) -> list[Change]:
    where = {"name": new.name, "place": new.place.title}
    if old.step is None:
        return []
    if new.step is None:
        note = f"{new.status}: {(new.reason or '').splitlines()[0]}"
        return [
            Change(**where, figure="step_s", old=old.step.value, new=None, tolerance=0.0, note=note),
        ]
    noise = STEP_TOLERANCE + old.step.noise + new.step.noise
    loss = EXACT_LOSS_TOLERANCE if new.exact else LOSS_TOLERANCE
    figures = [
        ("step_s", old.step.value, new.step.value, noise),
        ("peak_memory_bytes", old.peak_bytes, new.peak_bytes, MEMORY_TOLERANCE),
        ("sent_bytes", old.sent_bytes, new.sent_bytes, SENT_TOLERANCE),
        ("loss", old.loss, new.loss, loss),
    ]
    return [
        Change(**where, figure=figure, old=before, new=now, tolerance=tolerance)
        for figure, before, now, tolerance in figures
        if before is not None
    ]
