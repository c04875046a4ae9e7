"""A page with several charts that works without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
import plotly.io


def write_page(path: Path, title: str, figures: Sequence[go.Figure]) -> None:
    """Write the charts one below the other; plotly's own code is in the page once."""
    parts = [
        plotly.io.to_html(
            figure, full_html=False, include_plotlyjs=place == 0, config={"displayModeBar": False}
        )
        for place, figure in enumerate(figures)
    ]
    head = f'<!doctype html><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>'
    path.write_text(head + "\n".join(parts), encoding="utf-8")
    print(f"Written to {path}")
