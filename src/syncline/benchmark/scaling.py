"""How well a strategy uses more devices.

Strong scaling: the same global batch on more devices; weak: more of it for each. Either way the efficiency is
the speed for each device, relative to the smallest number of ranks, or to the reference on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.benchmark.entries import SINGLE, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One entry beside the one that it is measured by."""

    entry: Entry
    base: Entry
    speedup: float
    """Samples a second, relative to the base."""
    efficiency: float
    """The same for each device."""


def scale(entries: Sequence[Entry]) -> list[Scaled]:
    """Every measured entry that has a base other than itself."""
    found = []
    for entry in entries:
        base = _base(entry, entries)
        if base is None or entry.samples_per_s is None or base.samples_per_s is None:
            continue
        speedup = entry.samples_per_s / base.samples_per_s
        efficiency = speedup * base.devices / entry.devices
        found.append(Scaled(entry=entry, base=base, speedup=speedup, efficiency=efficiency))
    return found


def _base(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
    """The reference of the same model, else the same strategy on the fewest ranks."""
    model = [one for one in entries if one.place.model == entry.place.model and one.step is not None]
    singles = [one for one in model if one.strategy == SINGLE]
    same = [
        one
        for one in model
        if (one.framework, one.label, one.place.cluster)
        == (entry.framework, entry.label, entry.place.cluster)
    ]
    smallest = min(same, key=lambda one: one.place.world_size, default=None)
    base = singles[0] if singles else smallest
    return None if base is None or base is entry else base
