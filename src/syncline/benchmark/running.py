"""One cell: a training of its own, started by the library's launcher, and the row that its folder gives."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.benchmark.cells import Cell
from syncline.benchmark.curves import Course, read_course
from syncline.benchmark.environment import Environment
from syncline.benchmark.predictions import Predictions
from syncline.benchmark.row import Row
from syncline.benchmark.steady import estimate, group_means, period
from syncline.benchmark.suite import LEAST_MEASURED, LOCAL, Suite, uncounted_steps
from syncline.benchmark.timelines import shown_timeline
from syncline.errors import ClusterError, SynclineError
from syncline.launch.emulated import check_emulation_possible
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig
from syncline.training.inspection.breakdown import break_down
from syncline.training.inspection.reading import RankInspection, read_inspections
from syncline.training.run_folder import CHECKPOINTS_FOLDER
from syncline.training.start import start_training
from syncline.training.summary import Status, Summary, summarise

RUNS_FOLDER = "runs"
OUTPUT_LOG = "output.log"
PILOT_STEPS = 12
LEAST_STEPS = 24
LONGEST_INSPECTION = 16


class StoppedError(Exception):
    """A signal ended the cell that was running."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cells of a benchmark share."""

    suite: Suite
    folder: Path
    environment: Environment
    predictions: Predictions


def run_cell(bench: Bench, cell: Cell) -> Row:
    """Train a cell; a failure of any kind is a row with its reason, for the other cells go on.

    Raises:
        StoppedError: The user has had enough.
    """
    folder = bench.folder / RUNS_FOLDER / cell.name
    try:
        impossible = _why_impossible(cell)
        if impossible is not None:
            return _bare_row(bench, cell, "skipped", impossible)
        steps = _count_steps(bench, cell, folder)
        summary = _train(cell_config(bench.suite, cell, steps=steps), folder)
        return _measured_row(bench, cell, summary, folder)
    except StoppedError:
        raise
    except SynclineError as error:
        return _bare_row(bench, cell, "failed", str(error))
    except (Exception, SystemExit) as error:
        log = _keep_traceback(folder)
        return _bare_row(
            bench, cell, "failed", f"{type(error).__name__}: {error}\nThe traceback is in {log}."
        )


def _why_impossible(cell: Cell) -> str | None:
    """What this machine lacks to run a cell."""
    if cell.cluster == LOCAL:
        return None
    try:
        check_emulation_possible()
    except ClusterError as error:
        return str(error)
    return None


def _keep_traceback(folder: Path) -> Path:
    """Add the exception that is being handled to what the cell has said; the file."""
    moved = folder / OUTPUT_LOG
    log = moved if moved.exists() else _log_beside(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        traceback.print_exc(file=file)
    return log


def cell_config(suite: Suite, cell: Cell, *, steps: int) -> TrainConfig:
    """The run of a cell."""
    inspect = suite.inspect and min(max(suite.inspect, period(parse_strategy(cell.strategy))), _most(steps))
    return dataclasses.replace(
        suite.base_config(),
        model=cell.model,
        strategy=cell.strategy,
        ranks=cell.world_size,
        emulate=None if cell.cluster == LOCAL else cell.cluster,
        batch=cell.batch,
        steps=steps,
        seed=cell.seed,
        target_loss=suite.target_loss,
        inspect=inspect,
    )


def _most(steps: int) -> int:
    """Steps that may be inspected without leaving too few to measure."""
    room = steps - LEAST_MEASURED - uncounted_steps(1) + 1
    return max(1, min(LONGEST_INSPECTION, steps // 4, room))


def _count_steps(bench: Bench, cell: Cell, folder: Path) -> int:
    """The budget's; of one in seconds as many as fit, by a short run that is not kept."""
    budget = bench.suite.budget
    steps = budget.steps_of(cell.batch)
    if steps is not None:
        return steps
    assert budget.seconds is not None
    pilot = dataclasses.replace(cell_config(bench.suite, cell, steps=PILOT_STEPS), inspect=0)
    step_s = _train(pilot, folder).median_step_s
    if step_s is None:
        raise SynclineError("The short run that a budget in seconds needs was not measured.")
    shutil.rmtree(folder)
    return max(LEAST_STEPS, round(budget.seconds / step_s))


def _train(config: TrainConfig, folder: Path) -> Summary:
    shutil.rmtree(folder, ignore_errors=True)
    log = _log_beside(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    with _stderr_to(log):
        ended = start_training(config, folder)
    if ended.signal_number is not None:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoppedError(ended.signal_number)
    if ended.summary is None:
        raise SynclineError("A benchmark starts its ranks itself: do not start it by torchrun.")
    # The weights are the same as those of any such run; the rest is what was measured.
    shutil.rmtree(folder / CHECKPOINTS_FOLDER, ignore_errors=True)
    if folder.exists():
        log.replace(folder / OUTPUT_LOG)
    return ended.summary


def _log_beside(folder: Path) -> Path:
    """Where a run's output goes until the run has a folder."""
    return folder.with_name(f"{folder.name}.log")


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Within, what this process and the ranks it starts say goes to a file: the terminal has our progress."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


def _measured_row(bench: Bench, cell: Cell, summary: Summary, folder: Path) -> Row:
    course, ranks = read_course(folder), read_inspections(folder)
    groups = group_means(course.steady_step_s(), parse_strategy(cell.strategy))
    step = estimate(groups)
    breakdown = break_down(ranks)
    predicted = bench.predictions.of(cell)
    usual_s, interval = (step.value, step.interval) if step else (0.0, None)
    known: dict[str, Any] = dataclasses.asdict(summary)
    known |= _to_target(bench, cell, course, usual_s)
    flops = predicted.flops_per_step
    peak = bench.environment.peak_flops_per_s(cell.world_size)
    if known["predicted_step_s"] is None:
        known["predicted_step_s"] = predicted.step_s
        known["predicted_peak_memory_bytes"] = predicted.peak_memory_bytes
    if breakdown is not None:
        # One instrument for all strategies, whatever some count themselves.
        known["exposed_comm_s"] = breakdown.exposed_comm_s
    return Row(
        **known,
        **_names(bench, cell),
        group_step_s=groups,
        sustained_step_s=usual_s or None,
        step_s_low=interval[0] if interval else None,
        step_s_high=interval[1] if interval else None,
        sustained_samples_per_s=cell.batch / usual_s if usual_s else None,
        flops_per_step=flops,
        flop_utilisation=flops / usual_s / peak if flops and usual_s else None,
        breakdown=None if breakdown is None else dataclasses.asdict(breakdown),
        memory_by_kind=_memory(summary, ranks),
        curve=course.curve(usual_s),
        timeline=shown_timeline(ranks),
    )


def _to_target(bench: Bench, cell: Cell, course: Course, usual_s: float) -> dict[str, float | None]:
    """Time, samples and cost until the loss was reached, on the clock without inspection."""
    target = bench.suite.target_loss
    step = None if target is None else course.reached(target)
    if step is None:
        return {"time_to_target_s": None, "samples_to_target": None, "device_s_to_target": None}
    seconds = course.times_s(usual_s)[step]
    return {
        "time_to_target_s": seconds,
        "samples_to_target": course.samples[step],
        "device_s_to_target": seconds * bench.environment.devices(cell.world_size),
    }


def _memory(summary: Summary, ranks: list[RankInspection]) -> dict[str, int] | None:
    """By kind, on the rank with the highest peak; what the kinds do not explain is other."""
    peaks = summary.peak_memory_bytes
    if not ranks or not peaks:
        return None
    place = peaks.index(max(peaks))
    kinds = dataclasses.asdict(ranks[place].memory)
    return kinds | {"other": max(0, peaks[place] - sum(kinds.values()))}


def _names(bench: Bench, cell: Cell) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "label": cell.strategy,
        "start": bench.environment.date,
        "seed": cell.seed,
        "batch": cell.batch,
        "scaling": bench.suite.scaling,
        "target_loss": bench.suite.target_loss,
        "devices": bench.environment.devices(cell.world_size),
    }


def _bare_row(bench: Bench, cell: Cell, status: Status, reason: str) -> Row:
    """The row of a cell that gave no figures."""
    config = cell_config(bench.suite, cell, steps=PILOT_STEPS)
    summary = summarise(config, world_size=cell.world_size, steps=0, wall_s=0.0, status=status, reason=reason)
    return Row(**dataclasses.asdict(summary), **_names(bench, cell))
