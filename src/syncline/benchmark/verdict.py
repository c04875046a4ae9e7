"""What to use: the first thing that a report says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from syncline.amounts import show_bytes
from syncline.benchmark.entries import Entry, Place, samples_told
from syncline.benchmark.row import FRAMEWORK, brief

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
    exact = sorted((one for one in measured if one.exact and one.framework == FRAMEWORK), key=_sample_s)
    if not exact:
        told = f"{place.title}: no exact strategy gave figures."
        return Verdict(place=place, headline=told, details=_failures(entries), best=None)
    usual = find_usual(exact)
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


def find_usual(entries: Sequence[Entry]) -> Entry | None:
    """What speeds are relative to: data parallelism, with the batch that suits it best."""
    found = (one for one in entries if one.label == USUAL and one.framework == FRAMEWORK and one.step)
    return min(found, key=_sample_s, default=None)


def _sample_s(entry: Entry) -> float:
    return entry.sample_s


def _gain(best: Entry, usual: Entry | None) -> str:
    if usual is None or best.loss is None or usual.loss is None:
        return f", {best.samples_per_s:.0f} samples/s"
    if usual is best:
        return ": nothing exact is faster than data parallelism beyond noise"
    same = abs(best.loss - usual.loss) <= _SAME_LOSS * abs(usual.loss)
    differ = f"loss {best.loss:.3f} against {usual.loss:.3f} after {samples_told(best, usual)}"
    loss = "same loss" if same else differ
    return f": {usual.sample_s / best.sample_s:.2f} × data parallel, {loss}"


def _alike(one: Entry, other: Entry) -> bool:
    """Whether the intervals of two times overlap."""
    if one.sample is None or other.sample is None:
        return False
    (low, high), (other_low, other_high) = one.sample.bounds, other.sample.bounds
    return low <= other_high and other_low <= high


def _near(best: Entry, exact: Sequence[Entry]) -> list[str]:
    near = [one.name for one in exact if one is not best and _alike(one, best)]
    if not near:
        return []
    verb = "is" if len(near) == 1 else "are"
    return [f"Within noise of it {verb} {', '.join(near)}."]


def _inexact(best: Entry, others: Sequence[Entry]) -> list[str]:
    # A gain that noise could be is not worth another learning rule.
    faster = sorted(
        (one for one in others if one.sample_s < best.sample_s and not _alike(one, best)), key=_sample_s
    )
    if not faster or faster[0].loss is None or best.loss is None:
        return []
    one = faster[0]
    gain = best.sample_s / one.sample_s
    return [
        f"If another learning rule will do: {one.name} is {gain:.2f} × as fast, "
        f"with a loss of {one.loss:.3f} against {best.loss:.3f} after {samples_told(one, best)}."
    ]


def _leanest(best: Entry, exact: Sequence[Entry]) -> list[str]:
    known = [(one.peak_bytes, one) for one in exact if one.peak_bytes is not None]
    if not known or best.peak_bytes is None:
        return []
    least, one = min(known, key=lambda pair: pair[0])
    if one is best:
        return [f"It also takes the least memory: {show_bytes(least)} on the fullest rank."]
    slower = one.sample_s / best.sample_s
    return [
        f"{one.name} takes the least memory: {show_bytes(least)} on the fullest rank against "
        f"{show_bytes(best.peak_bytes)}, at {slower:.2f} × the time."
    ]


def _failures(entries: Sequence[Entry]) -> tuple[str, ...]:
    told = [
        f"{one.name} {one.status}: {brief(one.reason)}"
        for one in entries
        if one.status != "ok" and not _is_absent(one)
    ]
    absent = sum(map(_is_absent, entries))
    if absent:
        told.append(f"{absent} of other frameworks were skipped; what holds each back says why.")
    return tuple(told)


def _is_absent(entry: Entry) -> bool:
    """Most machines lack most of the other frameworks: that is no news."""
    return entry.framework != FRAMEWORK and entry.status == "skipped"
