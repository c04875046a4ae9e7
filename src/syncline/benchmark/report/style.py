"""How figures look: one colour for one thing, and inexact strategies never look like exact ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from syncline.benchmark.entries import Entry

EXACT, INEXACT = "#2f6db3", "#d9702b"
CAUSES = {
    "compute_s": ("compute", "#2f6db3"),
    "exposed_comm_s": ("exposed communication", "#a63d2f"),
    "bubble_s": ("bubble: waiting for another rank", "#f0b277"),
    "overhead_s": ("overhead", "#8d939c"),
    "data_s": ("data", "#4c9a6a"),
}
KINDS = {
    "weights": "#2f6db3",
    "gradients": "#8fb8e3",
    "optimizer_state": "#8d939c",
    "activations": "#d9702b",
    "other": "#d8d2c6",
}
LEVELS = {"node": ("inside nodes", "#8fb8e3"), "network": ("between nodes", "#a63d2f")}
_EXACT_LINES = ("#1f4e86", "#2f6db3", "#5b93cf", "#4c9a6a", "#2b7a78", "#6a5acd", "#111827", "#7a8fa6")
_INEXACT_LINES = ("#d9702b", "#b23a2e", "#e0a030", "#c2557a", "#8f5a2a", "#e58f65")
_GRID = "#e6e9ee"
Figure = dict[str, Any]


def layout(title: str, *, height: int, **more: Any) -> dict[str, Any]:
    """The look that all figures share; `title` is that of the x axis."""
    base: dict[str, Any] = {
        "plot_bgcolor": "#ffffff",
        "paper_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1d2430"},
        "margin": {"l": 10, "r": 16, "t": 12, "b": 48},
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
            "font": {"size": 11},
        },
        "height": height,
        "xaxis": {
            "title": {"text": title},
            "rangemode": "tozero",
            "gridcolor": _GRID,
            "zeroline": False,
            "automargin": True,
        },
        "yaxis": {"automargin": True, "gridcolor": _GRID, "zeroline": False},
    }
    for name, value in more.items():
        known = base.get(name)
        base[name] = known | value if isinstance(known, dict) and isinstance(value, dict) else value
    return base


def bar_name(entry: Entry) -> str:
    """The name on an axis; inexact ones are marked, also where there are no colours."""
    return entry.short if entry.exact else f"≈ {entry.short}"


def pattern(entries: Sequence[Entry]) -> dict[str, Any]:
    """Hatching for the bars of inexact strategies."""
    return {
        "shape": ["" if one.exact else "/" for one in entries],
        "fillmode": "overlay",
        "fgcolor": "#ffffff",
        "fgopacity": 0.75,
        "size": 6,
        "solidity": 0.35,
    }


def line_style(place: int, *, exact: bool) -> dict[str, Any]:
    """Exact lines are solid and cold, inexact ones dashed and warm."""
    colors = _EXACT_LINES if exact else _INEXACT_LINES
    return {"color": colors[place % len(colors)], "width": 2, "dash": "solid" if exact else "dash"}
