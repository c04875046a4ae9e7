"""`summary.json`: what a run came to, in the names that benchmarks and reports share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from syncline.errors import RunFolderError
from syncline.planning.prediction import Prediction
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig
from syncline.training.files import write_json
from syncline.training.measurements import Measurements

SUMMARY_FILE = "summary.json"
Status = Literal["ok", "failed", "skipped", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run's figures; None where a figure was not measured."""

    strategy: str
    options: dict[str, Any]
    exact: bool
    model: str
    data: str | None
    world_size: int
    cluster: str
    steps: int
    samples: int
    final_loss: float | None
    eval_loss: float | None
    median_step_s: float | None
    step_s_p10: float | None
    step_s_p90: float | None
    samples_per_s: float | None
    peak_memory_bytes: list[int] | None
    """By rank; see `cluster.memory` for what is counted."""
    sent_bytes: dict[str, int] | None
    """Inside nodes and between them, summed over ranks."""
    exposed_comm_s: float | None
    predicted_step_s: float | None
    predicted_peak_memory_bytes: int | None
    wall_s: float
    """Of this start, with start-up, evaluation and checkpoints."""
    time_to_target_s: float | None
    samples_to_target: int | None
    status: Status
    reason: str | None
    schema: int = field(default=1)


def summarise(
    config: TrainConfig,
    *,
    world_size: int,
    steps: int,
    wall_s: float,
    status: Status,
    reason: str | None = None,
    measurements: Measurements | None = None,
    peak_memory_bytes: list[int] | None = None,
    sent_bytes: dict[str, int] | None = None,
    prediction: Prediction | None = None,
) -> Summary:
    """A summary from what the loop measured, or of a run that never got so far.

    `prediction` is that of the plan which was run.
    """
    strategy = parse_strategy(config.strategy)
    known = measurements or Measurements(global_batch=config.batch)
    return Summary(
        strategy=strategy.name,
        options=asdict(strategy),  # pyrefly: ignore[bad-argument-type]
        exact=strategy.exact,
        model=config.model,
        data=config.data,
        world_size=world_size,
        cluster=config.emulate or "local",
        steps=steps,
        samples=steps * config.batch,
        final_loss=known.final_loss,
        eval_loss=known.eval_loss,
        median_step_s=_percentile(known, 50),
        step_s_p10=_percentile(known, 10),
        step_s_p90=_percentile(known, 90),
        samples_per_s=known.samples_per_s,
        peak_memory_bytes=peak_memory_bytes,
        sent_bytes=sent_bytes,
        exposed_comm_s=None if known.exposed_s is None else known.exposed_s / max(1, len(known.step_s)),
        predicted_step_s=None if prediction is None else prediction.step_s,
        predicted_peak_memory_bytes=None if prediction is None else round(prediction.memory.total),
        wall_s=wall_s,
        time_to_target_s=known.time_to_target_s,
        samples_to_target=known.samples_to_target,
        status=status,
        reason=reason,
    )


def write_summary(summary: Summary, folder: Path) -> None:
    """Write a run's summary into its folder."""
    write_json(folder / SUMMARY_FILE, asdict(summary))


def read_summary(folder: Path) -> Summary:
    """The summary in a run's folder."""
    path = folder / SUMMARY_FILE
    try:
        return Summary(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from None


def _percentile(measurements: Measurements, percent: int) -> float | None:
    steady = measurements.steady_step_s
    return float(np.percentile(steady, percent)) if len(steady) else None
