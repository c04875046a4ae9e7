"""Bars: speed, where a step goes, memory by kind, traffic by level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from syncline.benchmark.entries import Entry
from syncline.benchmark.report.style import (
    CAUSES,
    EXACT,
    INEXACT,
    KINDS,
    LEVELS,
    Figure,
    bar_name,
    layout,
    pattern,
)


def speed(entries: Sequence[Entry]) -> Figure | None:
    """Samples a second, the fastest first, with intervals."""
    shown = sorted((one for one in entries if one.step), key=lambda one: -(one.samples_per_s or 0))
    if not shown:
        return None
    values = [one.samples_per_s or 0.0 for one in shown]
    more, less = zip(*map(_whiskers, shown), strict=True)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": [bar_name(one) for one in shown],
        "x": values,
        "marker": {"color": [EXACT if one.exact else INEXACT for one in shown], "pattern": pattern(shown)},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": list(more),
            "arrayminus": list(less),
            "thickness": 1.2,
        },
        "hovertemplate": "%{y}: %{x:.1f} samples/s<extra></extra>",
    }
    return {
        "data": [bars],
        "layout": layout(
            "samples/s (bars: intervals of 95 %)",
            height=_height(shown, legend=False),
            yaxis={"autorange": "reversed", "gridcolor": "#ffffff"},
            showlegend=False,
        ),
    }


def _whiskers(entry: Entry) -> tuple[float, float]:
    """How far the interval of samples a second reaches above and below; none without an interval."""
    sample = entry.sample
    if sample is None or sample.interval is None:
        return 0.0, 0.0
    low, high = sample.interval
    return 1 / low - 1 / sample.value, 1 / sample.value - 1 / high


def causes(entries: Sequence[Entry]) -> Figure | None:
    """Where the time of an inspected step goes."""
    names = {name: label for name, (label, _) in CAUSES.items()}
    colors = {name: color for name, (_, color) in CAUSES.items()}
    return _stacked(
        entries, lambda one: one.breakdown, names, colors, scale=1e3, unit="ms", title="ms of a step"
    )


def memory(entries: Sequence[Entry]) -> Figure | None:
    """What the fullest rank holds."""
    names = {name: name.replace("_", " ") for name in KINDS}
    return _stacked(
        entries,
        lambda one: one.mean_of(lambda row: row.memory_by_kind),
        names,
        KINDS,
        scale=1e-6,
        unit="MB",
        title="MB on the fullest rank",
    )


def traffic(entries: Sequence[Entry]) -> Figure | None:
    """What all ranks send in a step."""
    names = {name: label for name, (label, _) in LEVELS.items()}
    colors = {name: color for name, (_, color) in LEVELS.items()}
    return _stacked(
        entries,
        lambda one: one.mean_of(lambda row: row.sent_bytes_per_step),
        names,
        colors,
        scale=1e-6,
        unit="MB",
        title="MB sent in a step, all ranks together",
    )


def _stacked(
    entries: Sequence[Entry],
    values: Callable[[Entry], Mapping[str, float] | None],
    names: Mapping[str, str],
    colors: Mapping[str, str],
    *,
    scale: float,
    unit: str,
    title: str,
) -> Figure | None:
    found = [(one, parts) for one in entries if (parts := values(one)) is not None]
    if not found:
        return None
    found.sort(key=lambda pair: sum(pair[1].values()))
    shown = [one for one, _ in found]
    series = [
        trace
        for name, label in names.items()
        if any(parts.get(name) for _, parts in found)
        for trace in (
            _key(label, colors[name], shown[0]),
            {
                "type": "bar",
                "orientation": "h",
                "name": label,
                "legendgroup": label,
                "showlegend": False,
                "y": [bar_name(one) for one in shown],
                "x": [parts.get(name, 0.0) * scale for _, parts in found],
                "marker": {"color": colors[name], "pattern": pattern(shown)},
                "hovertemplate": f"{label}: %{{x:.4g}} {unit}<extra>%{{y}}</extra>",
            },
        )
    ]
    return {
        "data": series,
        "layout": layout(
            title,
            height=_height(shown, legend=True),
            barmode="stack",
            yaxis={"autorange": "reversed", "gridcolor": "#ffffff"},
        ),
    }


def _key(label: str, color: str, first: Entry) -> dict[str, Any]:
    """A bar without length for the legend, which would else be hatched whenever the first bar is."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "legendgroup": label,
        "y": [bar_name(first)],
        "x": [0],
        "marker": {"color": color},
        "hoverinfo": "skip",
    }


def _height(shown: Sequence[Entry], *, legend: bool) -> int:
    return 90 + 28 * len(shown) + (60 if legend else 0)
