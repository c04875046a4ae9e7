"""Looking at the loss now and then: its mean over all ranks, agreed on while the next steps run.

With it go the times of exchanges, in steps, from which `sync-every=auto` chooses. Every rank posts after
the same step and reads some steps later, so that all decide alike and nobody waits behind an exchange.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.under_way import unrecorded, wait_for


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What all ranks together saw since the last review."""

    loss: float
    exchange_steps: float | None
    """How many steps an exchange of all weights takes on average; None when none ended."""
    handling_steps: float | None
    """For how long a node works on one, in steps: copying, rounding and merging; None when none did."""


@dataclass(slots=True)
class _Posted:
    """Sums under way."""

    due: int
    """The step in which they are read."""
    sums: Tensor
    work: dist.Work | None = None

    def settle(self) -> list[float]:
        """The sums over all ranks, waited for if need be."""
        work, self.work = self.work, None
        wait_for(work)
        return self.sums.tolist()


class Review:
    """Collects losses of this rank and sums them over all.

    Args:
        every: After how many steps.
        device: Where the sums are kept.
    """

    def __init__(self, every: int, device: torch.device) -> None:
        self._every = every
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)
        """Of losses, steps, steps of exchanges, exchanges, steps of work on them, and shares worked on."""
        self._collected = 0
        self._posted: deque[_Posted] = deque()
        self._step_s = 0.0
        self._last: tuple[float, float] | None = None

    def add(self, loss: Tensor) -> None:
        """Take in a step."""
        self._sums[0] += loss
        self._sums[1] += 1
        self._collected += 1

    @property
    def is_due(self) -> bool:
        """Whether it is time to post."""
        return self._collected >= self._every

    def post(self, due: int) -> None:
        """Start to agree on what was collected, to be read in the step `due`."""
        sums = self._sums.clone()
        with unrecorded():
            work = dist.all_reduce(sums, async_op=True)
        self._posted.append(_Posted(due, sums, work))
        self._sums.zero_()
        self._collected = 0

    def take(self, step: int) -> list[Reviewed]:
        """What is to be read in this step."""
        reviewed = []
        while self._posted and self._posted[0].due <= step:
            loss, steps, taken, exchanges, worked, shares = self._posted.popleft().settle()
            exchange_steps = taken / exchanges if exchanges else None
            handling_steps = worked / shares if shares else None
            reviewed.append(Reviewed(loss / max(1.0, steps), exchange_steps, handling_steps))
        return reviewed

    def tick(self, exposed_s: float) -> None:
        """Note the time after a step; `exposed_s` is what this rank has waited for exchanges so far."""
        now_s = time.perf_counter()
        if self._last is not None:
            self._step_s = max(1e-6, (now_s - self._last[0]) - (exposed_s - self._last[1]))
        self._last = (now_s, exposed_s)

    def note_exchange(self, steps: float, waited_s: float = 0.0, *, share: float = 1.0) -> None:
        """An exchange of a share of the weights was over after so many steps and some waiting."""
        if self._step_s or not waited_s:
            self._sums[2] += (steps + (waited_s / self._step_s if waited_s else 0.0)) / share
            self._sums[3] += 1

    def note_handling(self, worked_s: float, *, share: float = 1.0) -> None:
        """This node worked so long on sending or merging a share of the weights; half an exchange each.

        What each of its ranks notes is averaged over them.
        """
        if self._step_s:
            self._sums[4] += worked_s / self._step_s
            self._sums[5] += share / 2

    def state(self) -> dict[str, Any]:
        """What all ranks know alike."""
        posted = [[each.due, each.settle()] for each in self._posted]
        return {"collected": self._collected, "posted": posted}

    def rank_tensor(self) -> Tensor:
        """What this rank collected."""
        return self._sums

    def apply(self, state: dict[str, Any], sums: Tensor) -> None:
        """Take over what `state` and `rank_tensor` gave."""
        self._collected = state["collected"]
        self._posted = deque(
            _Posted(due, torch.tensor(values, dtype=torch.float64)) for due, values in state["posted"]
        )
        self._sums.copy_(sums)

    def drop(self) -> None:
        """Forget what was posted."""
        self._posted.clear()
