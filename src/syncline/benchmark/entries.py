"""What is compared: the rows of all seeds of one strategy in one place, as one entry."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from syncline.benchmark.row import FRAMEWORK, Row
from syncline.benchmark.steady import Estimate, estimate
from syncline.strategies.registry import STRATEGIES

SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What entries must share to be compared with each other."""

    model: str
    cluster: str
    world_size: int
    scaling: str

    @property
    def title(self) -> str:
        """For people."""
        ranks = f"{self.world_size} rank{'s'[: self.world_size > 1]}"
        where = "this machine" if self.cluster == "local" else f"emulated {self.cluster}"
        return f"{self.model}, {ranks} on {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One strategy in one place, over all seeds; figures are None when no seed gave them."""

    label: str
    short: str
    """The label without its options, where these tell nothing apart."""
    framework: str
    strategy: str
    exact: bool
    place: Place
    batch: int
    rows: tuple[Row, ...]
    """Of all seeds, the first one first."""
    ok: tuple[Row, ...]
    """Those that were measured."""
    step: Estimate | None
    """Seconds of a step in the long run: shown, but not compared, for batches may differ."""
    variant: str = ""
    """Follows the names where the same strategy is in the same place with another batch."""

    @property
    def name(self) -> str:
        """The strategy with its options, and whose it is when it is not Syncline's."""
        whose = "" if self.framework == FRAMEWORK else f"{self.framework}: "
        return f"{whose}{self.label}{self.variant}"

    @property
    def status(self) -> str:
        """ok when all seeds are."""
        return next((row.status for row in self.rows if row.status != "ok"), "ok")

    @property
    def reason(self) -> str | None:
        """Why a seed gave no figures."""
        return next((row.reason for row in self.rows if row.status != "ok"), None)

    @property
    def sample(self) -> Estimate | None:
        """Seconds for each sample in the long run: what strategies are compared by."""
        return self.step.per(self.batch) if self.step else None

    @property
    def sample_s(self) -> float:
        """The figure of that; without one an entry is behind all others."""
        return self.sample.value if self.sample else float("inf")

    @property
    def samples(self) -> float:
        """What it has learned from."""
        return self.median(lambda row: row.samples) or 0.0

    @property
    def samples_per_s(self) -> float | None:
        """In the long run."""
        return 1 / self.sample.value if self.sample else None

    @property
    def devices(self) -> float:
        """Accelerators, or cores."""
        return self.rows[0].devices

    def median(self, figure: Callable[[Row], float | None]) -> float | None:
        """Of a figure over the seeds that have it."""
        values = [value for value in map(figure, self.ok) if value is not None]
        return statistics.median(values) if values else None

    def median_of_all(self, figure: Callable[[Row], float | None]) -> float | None:
        """The same, but None when a seed lacks it: a target that not every seed reaches is not reached."""
        return self.median(figure) if all(figure(row) is not None for row in self.ok) else None

    def mean_of(self, figure: Callable[[Row], dict[str, Any] | None]) -> dict[str, float] | None:
        """The means over seeds of several figures by name."""
        found = [values for values in map(figure, self.ok) if values]
        if not found:
            return None
        return {name: statistics.fmean(one.get(name, 0.0) for one in found) for name in found[0]}

    @property
    def loss(self) -> float | None:
        """What the run ends with: the evaluation loss, or without one the mean of the last ten steps."""
        return self.median(end_loss)

    @property
    def peak_bytes(self) -> float | None:
        """Of the rank that takes most."""
        return self.median(lambda row: row.peak_bytes)

    @property
    def sent_bytes(self) -> float | None:
        """In a step, by all ranks, over all levels."""
        return self.median(lambda row: None if (by := row.sent_bytes_per_step) is None else sum(by.values()))

    @property
    def breakdown(self) -> dict[str, float] | None:
        """Seconds of an inspected step by cause."""
        return self.mean_of(lambda row: row.breakdown)


def end_loss(row: Row) -> float | None:
    """The loss that a row is judged by."""
    if row.eval_loss is not None:
        return row.eval_loss
    tail = [point[2] for point in row.curve[-10:]]
    return statistics.fmean(tail) if tail else row.final_loss


def samples_told(one: Entry, other: Entry) -> str:
    """After what their losses are compared: a budget in seconds gives the faster one more samples."""
    return (
        "the same samples"
        if one.samples == other.samples
        else f"{one.samples:.0f} samples, not {other.samples:.0f}"
    )


def make_entries(rows: Iterable[Row]) -> list[Entry]:
    """Entries in the order of their first rows."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = (row.framework, row.label, row.model, row.cluster, row.world_size, row.batch, row.scaling)
        found.setdefault(key, []).append(row)
    labels = {(key[0], key[1]) for key in found}
    batches = Counter(key[:5] for key in {key[:6] for key in found})
    return [
        _entry(group, _short(group[0], labels), f" (batch {group[0].batch})" if batches[key[:5]] > 1 else "")
        for key, group in found.items()
    ]


def _short(row: Row, labels: set[tuple[object, object]]) -> str:
    bare = _bare(row.label)
    alike = [label for framework, label in labels if framework == row.framework and _bare(label) == bare]
    # Options that make an exact strategy inexact are never left out.
    is_usual = bare not in STRATEGIES or STRATEGIES[bare].exact is row.exact
    name = bare if len(alike) == 1 and is_usual else row.label
    return name if row.framework == FRAMEWORK else f"{row.framework}: {name}"


def _bare(label: object) -> str:
    return str(label).partition(":")[0]


def _entry(rows: Sequence[Row], short: str, variant: str) -> Entry:
    rows = sorted(rows, key=lambda row: row.seed)
    first = rows[0]
    ok = tuple(row for row in rows if row.status == "ok")
    return Entry(
        label=first.label,
        short=short + variant,
        variant=variant,
        framework=first.framework,
        strategy=first.strategy,
        exact=first.exact,
        place=Place(
            model=first.model, cluster=first.cluster, world_size=first.world_size, scaling=first.scaling
        ),
        batch=first.batch,
        rows=tuple(rows),
        ok=ok,
        step=estimate([seconds for row in ok for seconds in row.group_step_s]),
    )


def contests(entries: Sequence[Entry]) -> list[tuple[Place, list[Entry]]]:
    """Entries by place; the reference on one rank takes part wherever its model does."""
    places = list(dict.fromkeys(one.place for one in entries if one.strategy != SINGLE))
    if not places:
        places = list(dict.fromkeys(one.place for one in entries))
    return [
        (place, [one for one in entries if one.place == place or _refers(one, place)]) for place in places
    ]


def _refers(entry: Entry, place: Place) -> bool:
    return entry.strategy == SINGLE and entry.place.model == place.model and entry.place != place
