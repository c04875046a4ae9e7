"""How `syncline plan --explain` says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from syncline.cli.units import show_bytes, show_seconds
from syncline.planning.explanation import Explanation, Resource, Verdict
from syncline.planning.reasons import OpReason
from syncline.training.planned_runs import PlannedRun

_WORDS = {
    "compute_s": "compute",
    "recompute_s": "recomputing",
    "redistribute_s": "redistributing tensors",
    "exchange_s": "exchange inside the op",
    "parameters_s": "gradients and weights on links",
    "optimizer_s": "optimizer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was predicted, and what the last run of the same plan came to."""

    predicted_step_s: float
    predicted_memory_bytes: float
    predicted_sent_bytes: dict[str, float]
    """In a step by level, all ranks together."""
    run: PlannedRun | None


def show_explanation(explanation: Explanation, comparison: Comparison, to: Console) -> None:
    """Print an explanation."""
    for line in (*lines(explanation), *comparison_lines(comparison)):
        bold = not line.startswith(" ")
        to.print(f"[bold]{escape(line)}" if bold else escape(line), highlight=False, soft_wrap=True)


def lines(explanation: Explanation) -> Iterator[str]:
    """An explanation as text; headings are not indented."""
    yield "Why: the costliest ops"
    for reason in explanation.ops:
        yield from _op(reason, explanation.step_s)
    yield "What limits the step, most of all first"
    for resource in explanation.resources:
        yield _resource(resource, explanation.step_s)
    yield "What would have to change for each alternative to win"
    for verdict in explanation.verdicts:
        yield from _verdict(verdict)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Predicted and measured figures as text."""
    run = comparison.run
    if run is None:
        yield "Predicted, and not measured: there is no run of this plan in runs/"
    else:
        yield f"Predicted, and measured in {run.folder}"
    measured_step = None if run is None else run.step_s
    yield _compared("step", comparison.predicted_step_s, measured_step, show_seconds)
    peak = None if run is None else run.peak_memory_bytes
    yield _compared("peak memory of a rank", comparison.predicted_memory_bytes, peak, show_bytes)
    for level, predicted in comparison.predicted_sent_bytes.items():
        sent = None if run is None or run.sent_bytes is None else run.sent_bytes.get(level)
        yield _compared(f"sent in a step ({level})", predicted, sent, show_bytes)


def _compared(name: str, predicted: float, measured: float | None, show: Callable[[float], str]) -> str:
    line = f"  {name}: {show(predicted)}"
    if measured is None:
        return line
    error = f" ({predicted / measured - 1:+.0%})" if measured else ""
    return f"{line}, measured {show(measured)}{error}"


def _op(reason: OpReason, step_s: float) -> Iterator[str]:
    times = f" ({reason.count} alike)" if reason.count > 1 else ""
    share = reason.seconds / step_s if step_s else 0.0
    yield f"  {reason.name}{times}: {show_seconds(reason.seconds)}, {share:.0%} of the step"
    causes = sorted(reason.causes.items(), key=lambda item: -item[1])
    spent = ", ".join(f"{_WORDS[name]} {show_seconds(value)}" for name, value in causes if value > 0)
    yield f"    split: {reason.split}; spent on {spent}"
    if reason.next_split is None or reason.next_step_s is None:
        yield "    next best: no other split of it is possible here"
        return
    more = reason.next_step_s - step_s
    against = f"+{show_seconds(more)}, {more / step_s:+.2%}" if more > 0 else "just as fast"
    then = f"then the step takes {show_seconds(reason.next_step_s)} ({against})"
    yield f"    next best: {reason.next_split}; {then}"


def _resource(resource: Resource, step_s: float) -> str:
    change = "half" if "latency" in resource.name else "twice"
    after = f"{show_seconds(step_s)} -> {show_seconds(resource.step_s)}"
    return f"  {change} the {resource.name}: {after} ({-resource.gain:+.1%})"


def _verdict(verdict: Verdict) -> Iterator[str]:
    fits = "" if verdict.fits else ", does not fit"
    yield f"  {verdict.name} ({verdict.slower:.2f} x the plan's step{fits})"
    for change in verdict.changes:
        yield f"    {change}"
