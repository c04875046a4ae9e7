"""Intervals of time: joined, cut and measured. All are pairs (start, end), in any unit, of one clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]
Spans = list[Span]


def join(spans: Iterable[Sequence[float]]) -> Spans:
    """What any of the spans covers, in order and without overlap."""
    joined: Spans = []
    for start, end in sorted((float(start), float(end)) for start, end in spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined


def within(spans: Spans, frame: Span) -> Spans:
    """The parts inside a frame."""
    cut = ((max(start, frame[0]), min(end, frame[1])) for start, end in spans)
    return [(start, end) for start, end in cut if end > start]


def gaps(spans: Spans, frame: Span) -> Spans:
    """What joined spans leave free of a frame."""
    free: Spans = []
    reached = frame[0]
    for start, end in within(spans, frame):
        if start > reached:
            free.append((reached, start))
        reached = max(reached, end)
    if reached < frame[1]:
        free.append((reached, frame[1]))
    return free


def common(one: Spans, other: Spans) -> Spans:
    """What two lists of joined spans both cover."""
    shared: Spans = []
    first = second = 0
    while first < len(one) and second < len(other):
        start = max(one[first][0], other[second][0])
        end = min(one[first][1], other[second][1])
        if end > start:
            shared.append((start, end))
        if one[first][1] <= other[second][1]:
            first += 1
        else:
            second += 1
    return shared


def length(spans: Spans) -> float:
    """The sum of joined spans."""
    return sum(end - start for start, end in spans)
