"""One inspected step of each rank, coarse enough to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from syncline.training.inspection.breakdown import Timeline, timelines
from syncline.training.inspection.reading import RankInspection

_PIECES = 200
"""Of the time shown; each is drawn as the kind that fills most of it."""
_OVERHEAD = "overhead_s"


def shown_timeline(ranks: Sequence[RankInspection]) -> list[dict[str, Any]]:
    """The last step that all ranks were watched in: for each rank, spans of one kind after another."""
    lines = timelines(ranks)
    numbers = [{line.step for line in lines if line.rank == one.rank} for one in ranks]
    shared = set.intersection(*numbers) if numbers else set()
    if not shared:
        return []
    chosen = [line for line in lines if line.step == max(shared)]
    begin, end = min(line.start_s for line in chosen), max(line.end_s for line in chosen)
    edges = np.linspace(begin, end, _PIECES + 1)
    return [{"rank": line.rank, "spans": _spans(line, edges)} for line in chosen]


def _spans(line: Timeline, edges: np.ndarray) -> list[dict[str, Any]]:
    names = list(line.kinds)
    filled = np.stack([_filled(line.kinds[name], edges) for name in names])
    width = edges[1] - edges[0]
    inside = _filled([(line.start_s, line.end_s)], edges)
    rest = np.clip(inside - filled.sum(axis=0), 0, None)
    every = np.vstack([filled, rest, width - inside])
    kinds = [*names, _OVERHEAD, None]
    winners = [kinds[place] for place in every.argmax(axis=0)]
    found: list[dict[str, Any]] = []
    for place, kind in enumerate(winners):
        start, end = (float(edges[place + more] - edges[0]) for more in (0, 1))
        if found and found[-1]["kind"] == kind:
            found[-1]["end_s"] = round(end, 6)
        else:
            found.append({"kind": kind, "start_s": round(start, 6), "end_s": round(end, 6)})
    return [span for span in found if span["kind"] is not None]


def _filled(spans: Sequence[tuple[float, float]], edges: np.ndarray) -> np.ndarray:
    """How much of each piece spans cover."""
    # From the first edge on: sums of thousands of times since 1970 would be rounded to milliseconds.
    starts = np.array([start for start, _ in spans]) - edges[0]
    ends = np.array([end for _, end in spans]) - edges[0]
    covered = np.array([(np.clip(edge, starts, ends) - starts).sum() for edge in edges - edges[0]])
    return np.diff(covered)
