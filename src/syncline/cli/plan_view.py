"""How `syncline plan` shows a plan on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from syncline.cli.units import show_bytes, show_seconds
from syncline.planning.layers import Section
from syncline.planning.plan import Plan
from syncline.planning.prediction import Memory, Prediction

PLAN = "this plan"


def show_plan(plan: Plan, by_layer: Sequence[Section], devices: int, capture_s: float, to: Console) -> None:
    """The whole answer, from the headline to the warnings."""
    _headline(plan, devices, capture_s, to)
    _warnings(plan, to)
    _alternatives(plan, to)
    _stages(plan, to)
    _layers(plan, by_layer, to)
    _memory(plan, to)


def show_count(count: float) -> str:
    """A large number: `124 M`."""
    for unit in ("", " k", " M", " G", " T"):
        if count < 1000 or unit == " T":
            return f"{count:.3g}{unit}"
        count /= 1000
    raise AssertionError("unreachable")


def grid(*columns: str, title: str) -> Table:
    """A table whose first column is text, all others figures."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    return table


def _headline(plan: Plan, devices: int, capture_s: float, to: Console) -> None:
    work, search = plan.workload, plan.search
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("model", escape(f"{work.model}, {show_count(work.parameters)} parameters"))
    table.add_row("batch", f"{work.batch} in all, {work.batch / devices:.3g} a device")
    marked = (
        "measured" if plan.measured else "[yellow]not measured: seconds are estimates from data sheets[/]"
    )
    if plan.timed_share:
        marked += f", ops of {plan.timed_share:.0%} of compute timed"
    table.add_row("cluster", f"{escape(plan.cluster)}, {devices} devices, {marked}")
    axes = " x ".join(f"{axis.size} ({axis.level})" for axis in plan.axes)
    table.add_row("mesh", axes or "one device")
    table.add_row("space", f"{search.space} plans of {search.ops} ops, {search.choices} shardings")
    table.add_row("took", f"capture {show_seconds(capture_s)}, search {show_seconds(search.seconds)}")
    to.print(table)


def _warnings(plan: Plan, to: Console) -> None:
    if plan.warnings:
        text = "\n".join(plan.warnings)
        title = f"{len(plan.warnings)} ops without a splitting rule"
        to.print(Panel(escape(text), title=title, title_align="left", border_style="bold yellow"))


def _alternatives(plan: Plan, to: Console) -> None:
    columns = ("", "step", "against it", "compute", "exposed comm.", "memory a device", "exact", "fits")
    table = grid(*columns, title="Ways to train it")
    best = plan.prediction
    table.add_row(f"[bold]{PLAN}", *_figures(best, best), "yes", "[green]yes")
    for one in plan.alternatives:
        exact, fits = "yes" if one.exact else "no", "[green]yes" if one.fits else "[red]no"
        if one.prediction is None:
            table.add_row(escape(one.name), *[""] * 5, exact, escape(one.note))
        else:
            table.add_row(escape(one.name), *_figures(one.prediction, best), exact, fits)
    to.print(table)


def _stages(plan: Plan, to: Console) -> None:
    """What only training in stages has: the time in which devices wait, and what they send."""
    staged = [(one.name, one.prediction) for one in plan.alternatives]
    counted = [(name, one) for name, one in staged if one is not None and one.sent_bytes is not None]
    if not counted:
        return
    table = grid("", "step", "bubble", "of the step", "memory a device", "sent a device", title="In stages")
    for name, one in counted:
        bubble = one.times.bubble_s
        figures = show_seconds(one.step_s), show_seconds(bubble), f"{bubble / one.step_s:.0%}"
        table.add_row(escape(name), *figures, show_bytes(one.memory.total), show_bytes(one.sent_bytes or 0.0))
    to.print(table)


def _figures(prediction: Prediction, best: Prediction) -> list[str]:
    times = prediction.times
    return [
        show_seconds(times.step_s),
        f"{times.step_s / best.step_s:.2f} x",
        show_seconds(times.compute_s + times.recompute_s + times.optimizer_s),
        show_seconds(times.exposed_comm_s),
        show_bytes(prediction.memory.total),
    ]


def _layers(plan: Plan, by_layer: Sequence[Section], to: Console) -> None:
    title = "The plan by layer"
    if plan.recompute:
        title += " (repeated blocks recompute their activations in backward)"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("layer", overflow="fold")
    table.add_column("ops", justify="right")
    table.add_column("split", overflow="fold")
    table.add_column("parameters")
    table.add_column("step", justify="right")
    table.add_column("of it comm.", justify="right")
    for section in by_layer:
        if section.label:
            table.add_section()
            blocks = f"{section.blocks} blocks alike" if section.blocks > 1 else "1 block"
            table.add_row(f"[bold]{escape(section.label)}", "", f"[dim]{blocks}", "", "", "")
        for row in section.rows:
            indent = "  " if section.label else ""
            split = escape(row.split) if row.split else "[dim]" + ("" if not row.kind else "whole")
            seconds = show_seconds(row.cost.total_s), show_seconds(row.cost.communication_s)
            table.add_row(indent + escape(row.name), str(row.count), split, row.keep, *seconds)
        if section.label:
            table.add_section()
    to.print(table)


def _memory(plan: Plan, to: Console) -> None:
    table = grid("memory of a device", "bytes", "of the limit", title="")
    table.title = None
    memory = plan.prediction.memory
    limit = plan.memory_limit_bytes
    for field in fields(Memory):
        size = getattr(memory, field.name)
        table.add_row(field.name.replace("_", " "), show_bytes(size), f"{size / limit:.1%}")
    table.add_section()
    table.add_row("all", show_bytes(memory.total), f"{memory.total / limit:.1%}")
    table.add_row("limit", show_bytes(limit), "")
    to.print(table)
