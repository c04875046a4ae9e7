"""How `syncline plan --cost pase` shows what the paper's search finds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncline.cli.plan_view import grid, show_count
from syncline.cli.units import show_seconds
from syncline.planning.pase import PaseResult


def show_pase(result: PaseResult, model: str, to: Console) -> None:
    """Costs, what people's strategies cost beside it, and the configurations by layer."""
    head = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    head.add_row("model", escape(f"{model}, {len(result.choices)} layers"))
    head.add_row("network", f"flat, {result.devices} devices, {result.ratio:g} FLOP a word")
    head.add_row("took", show_seconds(result.seconds))
    to.print(head)
    costs = grid("PaSE's cost", "FLOP equivalents", "against it", title="Strategies")
    for name, cost in _costs(result):
        costs.add_row(escape(name), show_count(cost), f"{cost / result.cost:.2f} x" if result.cost else "")
    to.print(costs)
    layers = Table("layer", "dims", "parts", title="By layer", title_justify="left", title_style="bold")
    for name, dims, parts in result.rows():
        layers.add_row(escape(name), " ".join(dims), " x ".join(map(str, parts)))
    to.print(layers)


def pase_values(result: PaseResult, model: str) -> dict[str, Any]:
    """The result as plain values, for JSON."""
    ratios = {name: cost / result.cost if result.cost else None for name, cost in _costs(result)}
    return {
        "schema": 1,
        "model": model,
        "devices": result.devices,
        "ratio": result.ratio,
        "cost": result.cost,
        "data_parallel_cost": result.data_parallel_cost,
        "expert": result.expert,
        "expert_cost": result.expert_cost,
        "against": ratios,
        "seconds": result.seconds,
        "layers": [asdict(choice) for choice in result.choices],
        "unpriced": list(result.unpriced),
    }


def _costs(result: PaseResult) -> list[tuple[str, float]]:
    rows = [("the cheapest strategy", result.cost), ("data parallel", result.data_parallel_cost)]
    if result.expert is not None and result.expert_cost is not None:
        rows.append((result.expert, result.expert_cost))
    return rows
