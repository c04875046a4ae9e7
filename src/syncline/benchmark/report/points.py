"""Points: time against memory with its Pareto front, and predictions against what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncline.benchmark.entries import Entry
from syncline.benchmark.report.style import EXACT, INEXACT, Figure, bar_name, layout


def front(entries: Sequence[Entry]) -> list[Entry]:
    """The exact entries that no other exact one beats in both time and memory."""
    known = [one for one in entries if one.exact and one.step and one.peak_bytes is not None]
    return sorted(
        (one for one in known if not any(_beats(other, one) for other in known)),
        key=lambda one: one.step.value if one.step else 0.0,
    )


def pareto(entries: Sequence[Entry]) -> Figure | None:
    """Step time against memory; the line joins what nothing exact beats."""
    shown = [one for one in entries if one.step and one.peak_bytes is not None]
    if not shown:
        return None
    best = front(shown)
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "front of the exact ones",
        "x": [_ms(one) for one in best],
        "y": [_mb(one) for one in best],
        "line": {"color": EXACT, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }
    series = [line, *(_points(shown, exact=exact) for exact in (True, False))]
    titles = {"title": {"text": "MB on the fullest rank"}, "rangemode": "tozero"}
    return {"data": series, "layout": layout("ms a step", height=440, yaxis=titles)}


def predicted(entries: Sequence[Entry]) -> Figure | None:
    """Predicted step times against measured ones: on the line they agree."""
    known = [(one, guess) for one in entries if one.step and (guess := _guess(one)) is not None]
    if not known:
        return None
    largest = max(max(guess, one.step.value if one.step else 0.0) for one, guess in known) * 1e3 * 1.1
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [0, largest],
        "y": [0, largest],
        "line": {"color": "#9aa3af", "width": 1},
        "name": "as predicted",
        "hoverinfo": "skip",
    }
    dots = {
        "type": "scatter",
        "mode": "markers+text",
        "name": "strategies",
        "x": [_ms(one) for one, _ in known],
        "y": [guess * 1e3 for _, guess in known],
        "text": [bar_name(one) for one, _ in known],
        "textposition": _positions([_ms(one) for one, _ in known]),
        "textfont": {"size": 11},
        "marker": {"size": 10, "color": [EXACT if one.exact else INEXACT for one, _ in known]},
        "hovertemplate": "%{text}: measured %{x:.1f} ms, predicted %{y:.1f} ms<extra></extra>",
        "cliponaxis": False,
    }
    titles = {"title": {"text": "predicted, ms a step"}, "rangemode": "tozero"}
    return {
        "data": [line, dots],
        "layout": layout("measured, ms a step", height=420, yaxis=titles, showlegend=False),
    }


def _points(entries: Sequence[Entry], *, exact: bool) -> dict[str, Any]:
    shown = [one for one in entries if one.exact is exact]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "exact" if exact else "≈ inexact",
        "x": [_ms(one) for one in shown],
        "y": [_mb(one) for one in shown],
        "text": [one.short for one in shown],
        "textposition": _positions([_ms(one) for one in shown], first=0 if exact else 1),
        "textfont": {"size": 11},
        "customdata": [bar_name(one) for one in shown],
        "marker": {
            "size": 11,
            "color": EXACT if exact else INEXACT,
            "symbol": "circle" if exact else "diamond-open",
            "line": {"width": 2},
        },
        "hovertemplate": "%{customdata}: %{x:.1f} ms, %{y:.1f} MB<extra></extra>",
        "cliponaxis": False,
    }


def _positions(places: Sequence[float], *, first: int = 0) -> list[str]:
    """Above and below in turns, so that the names of neighbours do not cover each other."""
    order = sorted(range(len(places)), key=lambda place: places[place])
    found = [""] * len(places)
    for turn, place in enumerate(order):
        found[place] = ("top center", "bottom center")[(turn + first) % 2]
    return found


def _guess(entry: Entry) -> float | None:
    return entry.median(lambda row: row.predicted_step_s)


def _beats(one: Entry, other: Entry) -> bool:
    return (
        _ms(one) <= _ms(other) and _mb(one) <= _mb(other) and (_ms(one), _mb(one)) != (_ms(other), _mb(other))
    )


def _ms(entry: Entry) -> float:
    return entry.step.value * 1e3 if entry.step else 0.0


def _mb(entry: Entry) -> float:
    return (entry.peak_bytes or 0.0) * 1e-6
