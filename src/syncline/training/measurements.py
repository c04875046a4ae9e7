"""What a run's figures are made of: step times, losses, and when the target was reached."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

WARM_UP_STEPS = 3
TARGET_WINDOW = 10


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Collected by the loop, step by step."""

    global_batch: int
    target_loss: float | None = None
    train_s: float = 0.0
    """Seconds of training, over all starts of the run."""
    samples: int = 0
    final_loss: float | None = None
    eval_loss: float | None = None
    time_to_target_s: float | None = None
    samples_to_target: int | None = None
    step_s: list[float] = field(default_factory=list)
    """Without the steps that were inspected."""
    exposed_s: float | None = None
    """Seconds in which this rank has stood still for other nodes, where the strategy counts them."""
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=TARGET_WINDOW))

    def add_step(self, *, loss: float, step_s: float, disturbed: bool = False) -> None:
        """Take in a finished step; the time of one that was disturbed says nothing of the others."""
        if not disturbed:
            self.step_s.append(step_s)
        self.train_s += step_s
        self.samples += self.global_batch
        self.final_loss = loss
        self._recent.append(loss)
        if self.target_loss is None or self.time_to_target_s is not None:
            return
        if len(self._recent) == TARGET_WINDOW and sum(self._recent) / TARGET_WINDOW <= self.target_loss:
            self.time_to_target_s = self.train_s
            self.samples_to_target = self.samples

    @property
    def steady_step_s(self) -> np.ndarray:
        """Step times without the first ones, in which buffers are made and caches fill."""
        dropped = WARM_UP_STEPS if len(self.step_s) > 2 * WARM_UP_STEPS else 0
        return np.array(self.step_s[dropped:])

    @property
    def samples_per_s(self) -> float | None:
        """Speed at the median step."""
        steady = self.steady_step_s
        return float(self.global_batch / np.median(steady)) if len(steady) else None
