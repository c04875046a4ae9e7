"""From trainings across slow links to a table: time to the same loss, beside plain data parallelism."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np

from record import origin

BASELINE = "data"
WINDOW = 20
"""Steps over which a loss is averaged."""
SETTING = ("model", "batch", "steps", "clip_norm", "adamw_rate", "cluster")


def rows_of(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a strategy, over its seeds, with the origin of the latest, beside the same setting's baseline.

    Only seeds that the baseline has too are compared. The target of a seed is the loss that the baseline has
    with it after nine tenths of its steps, for the data of seeds are not equally hard.
    """
    rows = []
    for here in settings_of(done):
        setting = {key: here[0][key] for key in SETTING}
        base = [each for each in here if each["strategy"] == BASELINE and each["status"] == "ok"]
        for strategy in dict.fromkeys(each["strategy"] for each in here):
            cells = [each for each in here if each["strategy"] == strategy]
            seeds = {each["seed"] for each in cells}
            peers = [each for each in base if each["seed"] in seeds]
            row = setting | {"strategy": strategy} | _row(cells, peers)
            rows.append(row | {"measured": max((each["measured"] for each in cells), key=_date)})
    return rows


def settings_of(done: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The trainings of each setting, the baseline's first."""
    settings = sorted({tuple(each[key] for key in SETTING) for each in done}, key=str)
    ordered = sorted(done, key=_order)
    return [[each for each in ordered if tuple(each[key] for key in SETTING) == one] for one in settings]


def skipped_rows(cells: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a strategy and setting that was not run and has no figures of another time, with the reason."""
    names = (*SETTING, "strategy")
    known = {tuple(row[name] for name in names) for row in rows}
    found = {tuple(cell[name] for name in names): cell["reason"] for cell in cells}
    return [
        dict(zip(names, key, strict=True)) | {"seeds": 0, "skipped": reason, "measured": origin()}
        for key, reason in found.items()
        if key not in known
    ]


def smooth(cell: dict[str, Any]) -> np.ndarray:
    """The mean loss of the last steps, at each step; of fewer at the start."""
    losses = np.array(cell["losses"])
    sums = np.cumsum(losses)
    sums[WINDOW:] = sums[WINDOW:] - sums[:-WINDOW]
    return sums / np.minimum(np.arange(len(losses)) + 1, WINDOW)


def line_of(row: dict[str, Any]) -> str:
    """A row as one line of text."""
    head = f"{row['cluster']:12} {row['strategy']:40}"
    if "skipped" in row:
        return f"{head} skipped: {row['skipped']}"
    if "reason" in row:
        return f"{head} failed: {row['reason']}"
    reached = "not reached" if row["time_to_target_s"] is None else f"{row['time_to_target_s']:6.2f} s"
    less = f"{row['less_time']:+5.0%}" if row.get("less_time") is not None else "    -"
    eval_change = f"{row['eval_loss_ratio'] - 1:+.2%}" if "eval_loss_ratio" in row else "-"
    return (
        f"{head} {row['median_step_s'] * 1e3:7.1f} ms  target {reached:>11}  less {less}  "
        f"eval {row['eval_loss']:.4f} ({eval_change})  {row['network_bytes'] / 1e6:7.1f} MB"
    )


def _row(cells: list[dict[str, Any]], base: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [cell for cell in cells if cell["status"] != "ok"]
    if failed:
        return {"seeds": len(cells), "reason": failed[0]["reason"]}
    targets = {each["seed"]: float(smooth(each)[int(0.9 * len(each["losses"]))]) for each in base}
    times = _times_to(cells, targets)
    row: dict[str, Any] = {
        "seeds": len(cells),
        "reached": sum(math.isfinite(seconds) for seconds in times.values()),
        "target_losses": list(targets.values()),
        "time_to_target_s": _if_finite(statistics.median(times.values())),
        "median_step_s": _median(cells, "median_step_s"),
        "total_s": statistics.median(cell["time_s"][-1] for cell in cells),
        "final_loss": statistics.fmean(smooth(cell)[-1] for cell in cells),
        "eval_loss": statistics.fmean(cell["eval_loss"] for cell in cells),
        "network_bytes": _median(cells, "network_bytes"),
    }
    if base:
        base_times = _times_to(base, targets)
        shares = [times[seed] / base_times[seed] for seed in times if seed in base_times]
        row |= {
            "less_time": _if_finite(1 - statistics.median(shares)),
            "step_ratio": row["median_step_s"] / _median(base, "median_step_s"),
            "total_ratio": row["total_s"] / statistics.median(cell["time_s"][-1] for cell in base),
            "eval_loss_ratio": row["eval_loss"] / statistics.fmean(cell["eval_loss"] for cell in base),
        }
    return row


def _if_finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _date(measured: dict[str, Any]) -> str:
    return measured["date"]


def _order(cell: dict[str, Any]) -> tuple[bool, str]:
    return (cell["strategy"] != BASELINE, cell["strategy"])


def _median(cells: list[dict[str, Any]], key: str) -> float:
    return statistics.median(cell[key] for cell in cells)


def _times_to(cells: list[dict[str, Any]], targets: dict[int, float]) -> dict[int, float]:
    """Seconds by seed; infinitely many where a seed does not reach its target."""
    return {cell["seed"]: _time_to(cell, targets.get(cell["seed"])) for cell in cells}


def _time_to(cell: dict[str, Any], target: float | None) -> float:
    below = np.nonzero(smooth(cell)[WINDOW - 1 :] <= target)[0] if target is not None else []
    return cell["time_s"][int(below[0]) + WINDOW - 1] if len(below) else math.inf
