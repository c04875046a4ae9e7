"""Lines: loss by samples and by time, and speed by the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from syncline.benchmark.entries import Entry
from syncline.benchmark.report.style import Figure, bar_name, layout, line_style
from syncline.benchmark.scaling import Scaled

_SMOOTH = 5
"""Points of a curve that are averaged: single batches differ."""
_SAMPLES, _SECONDS, _LOSS = 0, 1, 2


def loss_by_samples(entries: Sequence[Entry]) -> Figure | None:
    """Statistical efficiency: what the same samples teach."""
    return _loss(entries, _SAMPLES, "samples")


def loss_by_time(entries: Sequence[Entry]) -> Figure | None:
    """What counts in the end: statistical efficiency times speed."""
    return _loss(entries, _SECONDS, "seconds of training")


def scaling(scaled: Sequence[Scaled]) -> Figure | None:
    """Efficiency by the number of ranks."""
    groups: dict[tuple[str, str, str], list[Scaled]] = {}
    for one in scaled:
        key = (one.entry.place.model, one.entry.place.cluster, bar_name(one.entry))
        groups.setdefault(key, []).append(one)
    sizes = {one.entry.place.world_size for one in scaled}
    if len(sizes) < 2:
        return None
    several = len({key[:2] for key in groups}) > 1
    series = []
    for place, (key, members) in enumerate(groups.items()):
        members = sorted(members, key=lambda one: one.entry.place.world_size)
        series.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{key[2]} ({key[0]}, {key[1]})" if several else key[2],
                "x": [one.entry.place.world_size for one in members],
                "y": [100 * one.efficiency for one in members],
                "line": line_style(place, exact=members[0].entry.exact),
                "hovertemplate": "%{x} ranks: %{y:.0f} %<extra>%{fullData.name}</extra>",
            }
        )
    ticks = {"tickvals": sorted(sizes)}
    figure_layout = layout("ranks", height=420, xaxis=ticks, yaxis=_title("speed for each device, %"))
    return {"data": series, "layout": figure_layout}


def _loss(entries: Sequence[Entry], axis: int, title: str) -> Figure | None:
    shown = [one for one in entries if any(row.curve for row in one.ok)]
    if not shown:
        return None
    counts = {True: 0, False: 0}
    series = []
    for entry in shown:
        row = next(row for row in entry.ok if row.curve)
        points = np.array(row.curve)
        series.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": bar_name(entry),
                "x": np.round(points[:, axis], 4).tolist(),
                "y": np.round(_smooth(points[:, _LOSS]), 5).tolist(),
                "line": line_style(counts[entry.exact], exact=entry.exact),
                "hovertemplate": "%{x:.4g}: %{y:.4f}<extra>%{fullData.name}</extra>",
            }
        )
        counts[entry.exact] += 1
    target = next((row.target_loss for one in shown for row in one.ok if row.target_loss is not None), None)
    more: dict[str, Any] = {"legend": {"entrywidth": 0.32, "entrywidthmode": "fraction"}}
    if target is not None:
        line = {"color": "#6b7280", "dash": "dot", "width": 1}
        more["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target, "line": line}
        ]
        more["annotations"] = [
            {"xref": "paper", "x": 1, "y": target, "text": "target", "showarrow": False, "yshift": 9}
        ]
    return {"data": series, "layout": layout(title, height=460, yaxis=_title("loss"), **more)}


def _title(text: str) -> dict[str, Any]:
    return {"title": {"text": text}}


def _smooth(values: np.ndarray) -> np.ndarray:
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - _SMOOTH)
    return (sums[ends] - sums[starts]) / (ends - starts)
