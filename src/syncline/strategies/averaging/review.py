"""Looking at the loss now and then: its mean over all ranks, agreed on while the next step runs.

With it go the times of exchanges, in steps, from which `sync-every=auto` chooses. Every rank posts after
the same step and reads after the next, so that all decide alike.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What all ranks together saw since the last review."""

    loss: float
    exchange_steps: float | None
    """How many steps an exchange took on average; None when none ended."""


class Review:
    """Collects losses of this rank and sums them over all.

    Args:
        every: After how many steps.
        device: Where the sums are kept.
    """

    def __init__(self, every: int, device: torch.device) -> None:
        self._every = every
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)
        """Of losses, steps, steps of exchanges, and exchanges."""
        self._collected = 0
        self._posted: Tensor | None = None
        self._agreement: dist.Work | None = None
        self._step_s = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, loss: Tensor) -> None:
        """Take in a step, and post when it is time."""
        self._sums[0] += loss
        self._sums[1] += 1
        self._collected += 1
        if self._collected >= self._every:
            self.post()

    def post(self) -> None:
        """Start to agree on what was collected, if anything was."""
        if not self._collected:
            return
        self._posted = self._sums.clone()
        self._agreement = dist.all_reduce(self._posted, async_op=True)
        self._sums.zero_()
        self._collected = 0

    def take(self) -> Reviewed | None:
        """What was posted after the last step, if anything was."""
        self._settle()
        posted, self._posted = self._posted, None
        if posted is None:
            return None
        loss, steps, exchange_steps, exchanges = posted.tolist()
        return Reviewed(loss / max(1.0, steps), exchange_steps / exchanges if exchanges else None)

    def tick(self, exposed_s: float) -> None:
        """Note the time after a step; `exposed_s` is what this rank has waited for exchanges so far."""
        now_s = time.perf_counter()
        if self._last is not None:
            self._step_s = max(1e-6, (now_s - self._last[0]) - (exposed_s - self._last[1]))
        self._last = (now_s, exposed_s)

    def note_exchange(self, steps: float, waited_s: float = 0.0) -> None:
        """An exchange was over after so many steps and some waiting."""
        if self._step_s or not waited_s:
            self._sums[2] += steps + (waited_s / self._step_s if waited_s else 0.0)
            self._sums[3] += 1

    def state(self) -> dict[str, Any]:
        """What all ranks know alike."""
        self._settle()
        posted = None if self._posted is None else self._posted.tolist()
        return {"collected": self._collected, "posted": posted}

    def rank_tensor(self) -> Tensor:
        """What this rank collected."""
        return self._sums

    def apply(self, state: dict[str, Any], sums: Tensor) -> None:
        """Take over what `state` and `rank_tensor` gave."""
        self._collected, posted = state["collected"], state["posted"]
        self._posted = None if posted is None else torch.tensor(posted, dtype=torch.float64)
        self._sums.copy_(sums)

    def drop(self) -> None:
        """Forget what was posted."""
        self._posted = self._agreement = None

    def _settle(self) -> None:
        agreement, self._agreement = self._agreement, None
        if agreement is not None:
            agreement.wait()
