"""What to use: the first thing that a report says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.amounts import show_bytes
from syncline.benchmark.entries import Entry, Place

USUAL = "data"
_SAME_LOSS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """For one place."""

    place: Place
    headline: str
    details: tuple[str, ...]
    best: Entry | None
    """The fastest exact one."""


def judge(place: Place, entries: Sequence[Entry]) -> Verdict:
    """The fastest exact strategy, what it gains over the usual one, and what else stands out."""
    measured = [one for one in entries if one.step is not None]
    # Other frameworks are shown beside, but what to use is a strategy of this one.
    exact = sorted((one for one in measured if one.exact and one.framework == "syncline"), key=_step_s)
    if not exact:
        told = f"{place.title}: no exact strategy gave figures."
        return Verdict(place=place, headline=told, details=_failures(entries), best=None)
    usual = next((one for one in exact if one.label == USUAL), None)
    # What cannot be told apart is no reason to leave the usual way.
    best = usual if usual is not None and _alike(usual, exact[0]) else exact[0]
    details = [
        *_near(best, exact),
        *_inexact(best, [one for one in measured if not one.exact]),
        *_leanest(best, exact),
        *_failures(entries),
    ]
    headline = f"{place.title}: use {best.name}{_gain(best, usual)}."
    return Verdict(place=place, headline=headline, details=tuple(details), best=best)


def _step_s(entry: Entry) -> float:
    return entry.step.value if entry.step else float("inf")


def _gain(best: Entry, usual: Entry | None) -> str:
    if usual is None or best.loss is None or usual.loss is None:
        return f", {best.samples_per_s:.0f} samples/s"
    if usual is best:
        return ": nothing exact is faster than data parallelism beyond noise"
    same = abs(best.loss - usual.loss) <= _SAME_LOSS * abs(usual.loss)
    loss = "same loss" if same else f"loss {best.loss:.3f} against {usual.loss:.3f}"
    return f": {_step_s(usual) / _step_s(best):.2f} × data parallel, {loss}"


def _alike(one: Entry, other: Entry) -> bool:
    """Whether the intervals of two step times overlap."""
    if one.step is None or other.step is None:
        return False
    (low, high), (other_low, other_high) = one.step.bounds, other.step.bounds
    return low <= other_high and other_low <= high


def _near(best: Entry, exact: Sequence[Entry]) -> list[str]:
    near = [one.name for one in exact if one is not best and _alike(one, best)]
    if not near:
        return []
    verb = "is" if len(near) == 1 else "are"
    return [f"Within noise of it {verb} {', '.join(near)}."]


def _inexact(best: Entry, others: Sequence[Entry]) -> list[str]:
    faster = sorted((one for one in others if _step_s(one) < _step_s(best)), key=_step_s)
    if not faster or faster[0].loss is None or best.loss is None:
        return []
    one = faster[0]
    gain = _step_s(best) / _step_s(one)
    # A budget in seconds gives the faster one more samples.
    samples, usual = one.median(lambda row: row.samples), best.median(lambda row: row.samples)
    budget = "the same samples" if samples == usual else f"{samples:.0f} samples, not {usual:.0f}"
    return [
        f"If another learning rule will do: {one.name} is {gain:.2f} × as fast, "
        f"with a loss of {one.loss:.3f} against {best.loss:.3f} after {budget}."
    ]


def _leanest(best: Entry, exact: Sequence[Entry]) -> list[str]:
    known = [(one.peak_bytes, one) for one in exact if one.peak_bytes is not None]
    if not known or best.peak_bytes is None:
        return []
    least, one = min(known, key=lambda pair: pair[0])
    if one is best:
        return [f"It also takes the least memory: {show_bytes(least)} on the fullest rank."]
    slower = _step_s(one) / _step_s(best)
    return [
        f"{one.name} takes the least memory: {show_bytes(least)} on the fullest rank against "
        f"{show_bytes(best.peak_bytes)}, at {slower:.2f} × the time."
    ]


def _failures(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(
        f"{one.name} {one.status}: {(one.reason or '').splitlines()[0]}"
        for one in entries
        if one.status != "ok"
    )
