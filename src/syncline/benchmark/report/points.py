"""Points: time against memory with its Pareto front, and predictions against what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncline.benchmark.entries import Entry
from syncline.benchmark.report.names import place_names
from syncline.benchmark.report.style import EXACT, INEXACT, Figure, bar_name, layout


def front(entries: Sequence[Entry]) -> list[Entry]:
    """The exact entries that no other exact one beats in both time and memory."""
    known = [one for one in entries if one.exact and one.step and one.peak_bytes is not None]
    return sorted(
        (one for one in known if not any(_beats(other, one) for other in known)),
        key=lambda one: one.sample_s,
    )


def pareto(entries: Sequence[Entry]) -> Figure | None:
    """Time for each sample against memory; the line joins what nothing exact beats."""
    shown = [one for one in entries if one.step and one.peak_bytes is not None]
    if not shown:
        return None
    best = front(shown)
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "front of the exact ones",
        "x": [_sample_ms(one) for one in best],
        "y": [_mb(one) for one in best],
        "line": {"color": EXACT, "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }
    # What may be chosen has the first choice of room for its name.
    shown.sort(key=lambda one: not one.exact)
    sides = place_names([(_sample_ms(one), _mb(one)) for one in shown], [one.short for one in shown])
    named = list(zip(shown, sides, strict=True))
    series = [
        line,
        *(
            _points([each for each in named if each[0].exact is exact], exact=exact)
            for exact in (True, False)
        ),
    ]
    titles = {"title": {"text": "MB on the fullest rank"}, "rangemode": "tozero"}
    return {"data": series, "layout": layout("ms for each sample", height=440, yaxis=titles)}


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
    names = [bar_name(one) for one, _ in known]
    sides = place_names([(_ms(one), guess * 1e3) for one, guess in known], names)
    dots = {
        "type": "scatter",
        "mode": "markers+text",
        "name": "strategies",
        "x": [_ms(one) for one, _ in known],
        "y": [guess * 1e3 for _, guess in known],
        "customdata": names,
        **_texts(names, sides),
        "marker": {"size": 10, "color": [EXACT if one.exact else INEXACT for one, _ in known]},
        "hovertemplate": "%{customdata}: measured %{x:.1f} ms, predicted %{y:.1f} ms<extra></extra>",
        "cliponaxis": False,
    }
    titles = {"title": {"text": "predicted, ms a step"}, "rangemode": "tozero"}
    return {
        "data": [line, dots],
        "layout": layout("measured, ms a step", height=420, yaxis=titles, showlegend=False),
    }


def _points(named: Sequence[tuple[Entry, str | None]], *, exact: bool) -> dict[str, Any]:
    shown = [one for one, _ in named]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "exact" if exact else "≈ inexact",
        "x": [_sample_ms(one) for one in shown],
        "y": [_mb(one) for one in shown],
        **_texts([one.short for one in shown], [side for _, side in named]),
        "customdata": [bar_name(one) for one in shown],
        "marker": {
            "size": 11,
            "color": EXACT if exact else INEXACT,
            "symbol": "circle" if exact else "diamond-open",
            "line": {"width": 2},
        },
        "hovertemplate": "%{customdata}: %{x:.3g} ms for each sample, %{y:.1f} MB<extra></extra>",
        "cliponaxis": False,
    }


def _texts(names: Sequence[str], sides: Sequence[str | None]) -> dict[str, Any]:
    """Names where there is room for them; pointing at a point shows every name."""
    return {
        "text": [name if side else "" for name, side in zip(names, sides, strict=True)],
        "textposition": [side or "top center" for side in sides],
        "textfont": {"size": 11},
    }


def _guess(entry: Entry) -> float | None:
    return entry.median(lambda row: row.predicted_step_s)


def _beats(one: Entry, other: Entry) -> bool:
    figures, others = (_sample_ms(one), _mb(one)), (_sample_ms(other), _mb(other))
    return figures != others and all(figure <= least for figure, least in zip(figures, others, strict=True))


def _sample_ms(entry: Entry) -> float:
    return entry.sample_s * 1e3


def _ms(entry: Entry) -> float:
    return entry.step.value * 1e3 if entry.step else 0.0


def _mb(entry: Entry) -> float:
    return (entry.peak_bytes or 0.0) * 1e-6
