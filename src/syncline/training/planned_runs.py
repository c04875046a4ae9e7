"""Finding the last run of a plan: what was measured, to be set beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from syncline.errors import SynclineError
from syncline.planning.plan import Plan
from syncline.planning.plan_file import load_plan
from syncline.training.run_folder import RUNS_FOLDER
from syncline.training.summary import SUMMARY_FILE, Summary, read_summary

PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run of a plan."""

    folder: str
    step_s: float
    peak_memory_bytes: int | None
    """Of the rank that takes most."""
    sent_bytes: dict[str, float] | None
    """In a step by level, all ranks together; start-up and checkpoints included."""


def last_run(plan: Plan, parent: Path = RUNS_FOLDER) -> PlannedRun | None:
    """The newest run below `parent` that ran the same plan and was measured."""
    folders = sorted(parent.glob(f"*/{SUMMARY_FILE}"), key=lambda path: -path.stat().st_mtime)
    for path in folders:
        run = _read(plan, path.parent)
        if run is not None:
            return run
    return None


def _read(plan: Plan, folder: Path) -> PlannedRun | None:
    if not (folder / PLAN_FILE).exists():
        return None
    try:
        other, summary = load_plan(folder / PLAN_FILE), read_summary(folder)
    except SynclineError:
        # A run of another version says nothing about this plan.
        return None
    if summary.median_step_s is None or _what_runs(other) != _what_runs(plan):
        return None
    return PlannedRun(
        folder=str(folder),
        step_s=summary.median_step_s,
        peak_memory_bytes=max(summary.peak_memory_bytes) if summary.peak_memory_bytes else None,
        sent_bytes=_by_step(summary),
    )


def _what_runs(plan: Plan) -> tuple[object, ...]:
    return plan.workload.model, plan.workload.batch, plan.axes, plan.ops, plan.tied, plan.recompute


def _by_step(summary: Summary) -> dict[str, float] | None:
    if summary.sent_bytes is None or not summary.steps:
        return None
    return {level: count / summary.steps for level, count in summary.sent_bytes.items()}
