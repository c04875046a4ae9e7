"""Loss by time across slow links, one chart a setting: what a strategy saves is how far left its line is."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from daso_rows import BASELINE, WINDOW, settings_of, smooth

_COLOURS = {
    BASELINE: "#222222",
    "daso": "#7fb3d5",
    "daso:sync-every=auto": "#2e86c1",
    "daso:sync-every=auto,wire=bf16": "#154360",
}
"""Of the lines to look at first; others are thin and dotted."""
_OTHERS = ("#d68910", "#27ae60", "#8e44ad", "#c0392b", "#16a085", "#7f8c8d", "#b7950b", "#a04000")


def charts_of(done: list[dict[str, Any]]) -> list[go.Figure]:
    """One for each setting, of its first seed."""
    return [_chart([cell for cell in cells if cell["seed"] == 0]) for cells in settings_of(done)]


def _chart(cells: list[dict[str, Any]]) -> go.Figure:
    figure = go.Figure()
    others = iter(_OTHERS)
    for cell in cells:
        if cell["status"] != "ok":
            continue
        name = cell["strategy"]
        known = name in _COLOURS
        line = {"color": _COLOURS[name] if known else next(others), "width": 3 if known else 1.5}
        figure.add_scatter(
            x=cell["time_s"][WINDOW - 1 :],
            y=smooth(cell)[WINDOW - 1 :],
            name=name,
            mode="lines",
            line=line | {"dash": "solid" if known else "dot"},
        )
    first = cells[0]
    figure.update_layout(
        title=f"{first['model']} on {first['cluster']}, {first['steps']} steps",
        xaxis_title="seconds of training",
        yaxis_title=f"training loss, mean of {WINDOW} steps",
        template="plotly_white",
        width=980,
        height=460,
        legend={"font": {"size": 12}},
    )
    return figure
