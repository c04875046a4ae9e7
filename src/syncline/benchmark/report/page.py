"""Puts the page together."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.benchmark.entries import Entry, Place, contests, make_entries
from syncline.benchmark.environment import Environment
from syncline.benchmark.hindrance import what_hinders
from syncline.benchmark.report import bars, lines, points
from syncline.benchmark.report.style import Figure
from syncline.benchmark.report.table import HEADINGS, TableRow, table_rows
from syncline.benchmark.report.timeline import timeline
from syncline.benchmark.row import Row
from syncline.benchmark.scaling import Scaled, scale
from syncline.benchmark.taxonomy import taxonomy
from syncline.benchmark.verdict import Verdict, judge
from syncline.errors import MissingExtraError

REPORT_FILE = "report.html"
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure with what it says."""

    name: str
    title: str
    note: str
    html: str


@dataclass(frozen=True, slots=True)
class Section:
    """All that is said of one place."""

    place: Place
    verdict: Verdict
    rows: list[TableRow]
    hindrances: list[tuple[Entry, str]]
    drawings: list[Drawing]


def report_page(rows: Sequence[Row], environments: Sequence[Environment], *, title: str) -> str:
    """The whole page.

    Raises:
        MissingExtraError: plotly or jinja2 is not installed.
    """
    check_packages()
    import jinja2
    import plotly.offline

    entries = make_entries(rows)
    scaled = scale(entries)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(_HERE)
    )
    sections = [
        _section(place, members, scaled, number) for number, (place, members) in enumerate(contests(entries))
    ]
    return environment.get_template("page.html.jinja").render(
        title=title,
        sections=sections,
        headings=HEADINGS,
        overall=_overall(scaled),
        taxonomy=taxonomy(entries),
        environments=environments,
        seeds=sorted({row.seed for row in rows}),
        cells=len(rows),
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        script=(_HERE / "page.js").read_text(encoding="utf-8"),
        plotly=plotly.offline.get_plotlyjs(),
    )


def check_packages() -> None:
    """Raise `MissingExtraError` if what draws pages is not installed."""
    for package in ("jinja2", "plotly"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingExtraError(package, "report", "A report") from None


def _section(place: Place, entries: Sequence[Entry], scaled: Sequence[Scaled], number: int) -> Section:
    return Section(
        place=place,
        verdict=judge(place, entries),
        rows=table_rows(entries, scaled),
        hindrances=[(one, what_hinders(one, entries)) for one in entries],
        drawings=[
            Drawing(name, title, note, _draw(figure, f"{name}-{number}"))
            for name, title, note, figure in _figures(entries)
            if figure is not None
        ],
    )


def _figures(entries: Sequence[Entry]) -> list[tuple[str, str, str, Figure | None]]:
    """Name, title, note and figure of all that is drawn of one place."""
    seed = " Of several seeds the first is drawn." if any(len(one.ok) > 1 for one in entries) else ""
    return [
        ("speed", "Speed", "Hatched bars marked ≈ learn by another rule.", bars.speed(entries)),
        (
            "causes",
            "Where a step goes",
            "Means of the inspected steps, over ranks. The profiler makes these steps longer than others.",
            bars.causes(entries),
        ),
        (
            "memory",
            "Memory by kind",
            "Each kind at its own peak in a step; other is what the rank's peak holds besides.",
            bars.memory(entries),
        ),
        ("traffic", "Traffic by level", "Counted by the kernel, start-up included.", bars.traffic(entries)),
        (
            "loss-samples",
            "Loss by samples",
            "What the same data teaches. Dashed lines are inexact; the lines of exact strategies coincide."
            + seed,
            lines.loss_by_samples(entries),
        ),
        ("loss-time", "Loss by time", f"Learning times speed.{seed}", lines.loss_by_time(entries)),
        (
            "pareto",
            "Time against memory",
            "Further left is faster, further down is leaner. Point at a mark for its name.",
            points.pareto(entries),
        ),
        (
            "predicted",
            "Predicted against measured",
            "By the planner's cost model, with ordinary rates. Below the line it is too optimistic.",
            points.predicted(entries),
        ),
        (
            "timeline",
            "One step, rank by rank",
            "One inspected step of each strategy, drawn to full width; the number is that of the rank."
            + seed,
            timeline(entries),
        ),
    ]


def _overall(scaled: Sequence[Scaled]) -> list[Drawing]:
    figure = lines.scaling(scaled)
    if figure is None:
        return []
    note = "Speed for each device, relative to one rank or to the fewest ranks that were run."
    return [Drawing("scaling", "Scaling", note, _draw(figure, "scaling-all"))]


def _draw(figure: Figure, name: str) -> str:
    import plotly.io

    options: dict[str, Any] = {"displayModeBar": False, "responsive": True}
    html = plotly.io.to_html(
        figure, full_html=False, include_plotlyjs=False, div_id=name, config=options, validate=False
    )
    # Plotly writes a check for a mathematics library that this page does not need.
    return re.sub(r"<script[^>]*>window\.PlotlyConfig.*?</script>", "", html)
