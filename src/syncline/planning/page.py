"""`plan.html`: one page, without anything from elsewhere, that draws a plan and where its costs go."""

from __future__ import annotations

import dataclasses
import importlib
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syncline.errors import MissingExtraError
from syncline.planning.breakdown import CAUSES
from syncline.planning.layers import OTHERS, LayerRow, Section
from syncline.planning.plan import Plan
from syncline.planning.prediction import Memory, Prediction

_BARS = 14
"""Layers that get a bar of their own; the others share one."""
_LABEL = 46
"""Characters in a line of a bar's name."""
_CAUSES = {
    "compute_s": ("compute", "#2f6db3"),
    "recompute_s": ("recomputing", "#8fb8e3"),
    "optimizer_s": ("optimizer", "#8d939c"),
    "redistribute_s": ("redistributing tensors", "#d9702b"),
    "exchange_s": ("exchange inside ops", "#f0b277"),
    "parameters_s": ("gradients and weights on links", "#a63d2f"),
}
_MEMORY = {
    "weights": "#2f6db3",
    "gradients": "#8fb8e3",
    "optimizer_state": "#8d939c",
    "saved_activations": "#d9702b",
    "gather_buffers": "#f0b277",
    "workspace": "#c9c2b4",
}
_LAYOUT: dict[str, Any] = {
    "barmode": "stack",
    "plot_bgcolor": "#ffffff",
    "paper_bgcolor": "#ffffff",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1d2430"},
    "margin": {"l": 10, "r": 30, "t": 64, "b": 44},
    "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
}


def plan_page(plan: Plan, by_layer: Sequence[Section], devices: int, explanation: Sequence[str] = ()) -> str:
    """The whole page.

    Args:
        plan: What to draw.
        by_layer: Its layers, with what they cost.
        devices: How many the cluster has.
        explanation: Lines of text; those that are not indented are headings.

    Raises:
        MissingExtraError: plotly or jinja2 is not installed.
    """
    check_page_packages()
    import jinja2
    import plotly.io
    import plotly.offline

    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        Path(__file__).with_name("plan.html.jinja").read_text(encoding="utf-8")
    )

    def draw(figure: dict[str, Any], name: str) -> str:
        return plotly.io.to_html(
            figure,
            full_html=False,
            include_plotlyjs=False,
            div_id=name,
            config={"displayModeBar": False, "responsive": True},
            validate=False,
        )

    return template.render(
        plan=plan,
        devices=devices,
        tiles=_tiles(plan),
        sections=_boxes(by_layer),
        longest=max((row.cost.total_s for section in by_layer for row in section.rows), default=1.0) or 1.0,
        explanation=[(line.strip(), (len(line) - len(line.lstrip())) // 2) for line in explanation],
        plotly=plotly.offline.get_plotlyjs(),
        time_by_layer=draw(_time_by_layer(by_layer), "time-by-layer"),
        alternatives=draw(_alternatives(plan), "alternatives"),
        memory=draw(_memory(plan), "memory"),
        ms=_ms,
        gb=_gb,
    )


def check_page_packages() -> None:
    """Raise `MissingExtraError` if what draws pages is not installed."""
    for package in ("jinja2", "plotly"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingExtraError(package, "report", "A page with a plan") from None


def _tiles(plan: Plan) -> list[tuple[str, str, str]]:
    """Figures that a reader looks for first: name, value, remark."""
    times, memory = plan.prediction.times, plan.prediction.memory
    others = [one for one in plan.alternatives if one.prediction is not None]
    step = f"{plan.workload.batch / times.step_s:,.0f} samples/s" if times.step_s else ""
    tiles = [
        ("step", _ms(times.step_s), step),
        (
            "exposed communication",
            _ms(times.exposed_comm_s),
            f"{times.exposed_comm_s / times.step_s:.1%} of it",
        ),
        ("memory of a device", _gb(memory.total), f"limit {_gb(plan.memory_limit_bytes)}"),
    ]
    if others and others[0].prediction is not None:
        ratio = others[0].prediction.step_s / times.step_s
        tiles.append((f"faster than {others[0].name}", f"{ratio:.2f} x", _ms(others[0].prediction.step_s)))
    tiles.append(("searched", f"{plan.search.space} plans", f"in {plan.search.seconds:.2f} s"))
    return tiles


def _boxes(by_layer: Sequence[Section]) -> list[dict[str, Any]]:
    return [
        {
            "label": section.label,
            "blocks": section.blocks,
            "seconds": section.seconds,
            "rows": [
                {"row": row, "chips": row.split.split(", ") if row.split else []} for row in section.rows
            ],
        }
        for section in by_layer
    ]


def _time_by_layer(by_layer: Sequence[Section]) -> dict[str, Any]:
    rows = [(_label(section, row), row) for section in by_layer for row in section.rows]
    rows.sort(key=lambda pair: -pair[1].cost.total_s)
    shown, rest = rows[:_BARS], rows[_BARS:]
    names = [name for name, _ in shown] + ([f"{len(rest)} smaller"] if rest else [])
    series = []
    for cause in CAUSES:
        values = [getattr(row.cost, cause) * 1e3 for _, row in shown]
        values += [sum(getattr(row.cost, cause) for _, row in rest) * 1e3] if rest else []
        series.append(_bar(names, values, *_CAUSES[cause], "ms"))
    height = 130 + 27 * len(names)
    return {"data": series, "layout": _layout("ms a step", height)}


def _alternatives(plan: Plan) -> dict[str, Any]:
    rows = _compared(plan)
    series = []
    for cause in CAUSES:
        values = [_cause_s(prediction, cause) * 1e3 for _, prediction in rows]
        series.append(_bar([name for name, _ in rows], values, *_CAUSES[cause], "ms"))
    return {"data": series, "layout": _layout("ms a step", 130 + 34 * len(rows))}


def _memory(plan: Plan) -> dict[str, Any]:
    rows = _compared(plan)
    names = [name for name, _ in rows]
    series = [
        _bar(
            names,
            [getattr(prediction.memory, field.name) / 1e9 for _, prediction in rows],
            field.name.replace("_", " "),
            _MEMORY[field.name],
            "GB",
        )
        for field in dataclasses.fields(Memory)
    ]
    layout = _layout("GB a device", 130 + 34 * len(rows))
    limit = plan.memory_limit_bytes / 1e9
    most = max(prediction.memory.total for _, prediction in rows) / 1e9
    if most > 0.2 * limit:
        line = {"color": "#b3261e", "dash": "dash", "width": 2}
        layout["shapes"] = [
            {"type": "line", "x0": limit, "x1": limit, "y0": 0, "y1": 1, "yref": "paper", "line": line}
        ]
        layout["xaxis"]["title"]["text"] += f" (dashed: the limit of {_gb(plan.memory_limit_bytes)})"
    return {"data": series, "layout": layout}


def _compared(plan: Plan) -> list[tuple[str, Prediction]]:
    others = [
        (one.name + ("" if one.fits else " (does not fit)"), one.prediction)
        for one in plan.alternatives
        if one.prediction is not None
    ]
    return [("this plan", plan.prediction), *others]


def _cause_s(prediction: Prediction, cause: str) -> float:
    times = prediction.times
    return times.parameters_s - times.hidden_s if cause == "parameters_s" else getattr(times, cause)


def _bar(names: Sequence[str], values: Sequence[float], name: str, color: str, unit: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "y": ["<br>".join(textwrap.wrap(label, _LABEL)) for label in names],
        "x": list(values),
        "name": name,
        "marker": {"color": color},
        "hovertemplate": f"{name}: %{{x:.4g}} {unit}<extra>%{{y}}</extra>",
    }


def _layout(title: str, height: int) -> dict[str, Any]:
    return _LAYOUT | {
        "height": height,
        "xaxis": {"title": {"text": title}, "rangemode": "tozero", "gridcolor": "#e6e9ee", "zeroline": False},
        "yaxis": {"autorange": "reversed", "automargin": True},
    }


def _label(section: Section, row: LayerRow) -> str:
    name = row.name if row.name != OTHERS or section.label else f"{OTHERS} outside blocks"
    return f"{section.label} {name}" if section.label else name


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
