"""Loss by samples and by time, from a run's `metrics.jsonl`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from syncline.training.measurements import TARGET_WINDOW, WARM_UP_STEPS
from syncline.training.sinks import METRICS_FILE

MOST_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a run went, step by step."""

    samples: list[int]
    losses: list[float]
    step_s: list[float]
    inspected: list[bool]

    def steady_step_s(self) -> list[float]:
        """Step times without warm-up and without steps that were inspected."""
        pairs = zip(self.step_s[WARM_UP_STEPS:], self.inspected[WARM_UP_STEPS:], strict=True)
        steady = [seconds for seconds, inspected in pairs if not inspected]
        return steady or list(self.step_s)

    def times_s(self, usual_s: float) -> list[float]:
        """Seconds of training after each step; an inspected one counts as the usual."""
        times, now = [], 0.0
        for seconds, inspected in zip(self.step_s, self.inspected, strict=True):
            now += usual_s if inspected else seconds
            times.append(now)
        return times

    def reached(self, target_loss: float) -> int | None:
        """The first step after which the mean loss of ten steps is at the target, counted from 0."""
        for step in range(TARGET_WINDOW - 1, len(self.losses)):
            recent = self.losses[step + 1 - TARGET_WINDOW : step + 1]
            if sum(recent) / TARGET_WINDOW <= target_loss:
                return step
        return None

    def curve(self, usual_s: float) -> list[list[float]]:
        """Samples, seconds and loss; not more points than can be seen."""
        points = [
            [float(samples), round(seconds, 6), loss]
            for samples, seconds, loss in zip(self.samples, self.times_s(usual_s), self.losses, strict=True)
        ]
        every = -(-len(points) // MOST_POINTS)
        return points[every - 1 :: every]


def read_course(folder: Path) -> Course:
    """The course of the run in a folder."""
    lines = [json.loads(line) for line in (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
    return Course(
        samples=[line["samples"] for line in lines],
        losses=[line["loss"] for line in lines],
        step_s=[line["step_s"] for line in lines],
        inspected=[line.get("inspected", False) for line in lines],
    )
