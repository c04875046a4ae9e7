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
from syncline.planning.plan import Alternative, Plan
from syncline.planning.prediction import Memory, Prediction

PLAN = "this plan"
WIDE = 130
"""Columns of a terminal that has room for long names."""


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
        if _is_staged(one):
            continue
        exact, fits = "yes" if one.exact else "no", "[green]yes" if one.fits else "[red]no"
        if one.prediction is None:
            table.add_row(escape(one.name), *[""] * 5, exact, escape(one.note))
        else:
            table.add_row(escape(one.name), *_figures(one.prediction, best), exact, fits)
    to.print(table)


def _stages(plan: Plan, to: Console) -> None:
    """Training in stages, with what only this has: the time in which devices wait, and what they send."""
    if not any(_is_staged(one) for one in plan.alternatives):
        return
    columns = ("step", "against it", "bubble", "memory a device", "sent a device", "exact", "fits")
    table = grid("", *columns, title="In stages")
    for one in plan.alternatives:
        found = one.prediction
        if found is None or found.sent_bytes is None:
            continue
        # Where there is no room for a name in one piece, it breaks between its options.
        name = one.name if to.width >= WIDE else one.name.replace(",", ", ").replace(":", ": ")
        table.add_row(
            escape(name),
            show_seconds(found.step_s),
            f"{found.step_s / plan.prediction.step_s:.2f} x",
            f"{found.times.bubble_s / found.step_s:.0%}",
            show_bytes(found.memory.total),
            show_bytes(found.sent_bytes),
            "yes" if one.exact else "no",
            "[green]yes" if one.fits else "[red]no",
        )
    to.print(table)


def _is_staged(one: Alternative) -> bool:
    """Whether an alternative trains in stages: only of these it is known what is sent."""
    return one.prediction is not None and one.prediction.sent_bytes is not None


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
