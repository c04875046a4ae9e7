"""What every rank does in one step, by strategy; each step is drawn as wide as the page."""

from __future__ import annotations

from collections.abc import Sequence

from syncline.benchmark.entries import Entry
from syncline.benchmark.report.style import CAUSES, Figure, bar_name, layout


def timeline(entries: Sequence[Entry]) -> Figure | None:
    """One inspected step of each strategy, a line for each rank."""
    shown = [(one, row) for one in entries for row in one.ok[:1] if row.timeline]
    if not shown:
        return None
    shown.sort(key=lambda pair: pair[0].sample_s)
    series = []
    for kind, (label, color) in CAUSES.items():
        names, widths, bases = [], [], []
        for entry, row in shown:
            scale = 100 / max(span["end_s"] for line in row.timeline for span in line["spans"])
            for line in row.timeline:
                spans = [span for span in line["spans"] if span["kind"] == kind]
                names += [_name(entry, line["rank"])] * len(spans)
                widths += [round((span["end_s"] - span["start_s"]) * scale, 3) for span in spans]
                bases += [round(span["start_s"] * scale, 3) for span in spans]
        if names:
            series.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": label,
                    "y": names,
                    "x": widths,
                    "base": bases,
                    "marker": {"color": color, "line": {"width": 0}},
                    "hovertemplate": f"{label}: %{{x:.1f}} % from %{{base:.1f}} %<extra>%{{y}}</extra>",
                }
            )
    order = [_name(entry, line["rank"]) for entry, row in shown for line in row.timeline]
    axis = {"autorange": "reversed", "categoryorder": "array", "categoryarray": order, "gridcolor": "#ffffff"}
    height = 150 + 22 * len(order)
    return {
        "data": series,
        "layout": layout(
            "% of the step",
            height=height,
            barmode="overlay",
            bargap=0.15,
            yaxis=axis,
            xaxis={"range": [0, 100]},
        ),
    }


def _name(entry: Entry, rank: int) -> str:
    return f"{bar_name(entry)} · {rank}"
