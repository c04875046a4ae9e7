"""What all ranks must agree on after each step, in one small collective that nobody waits for.

The mean loss, and whether anyone was told to stop, are summed over the ranks while the next step runs
and read one step later, or several where ranks are not in step with each other anyway. So every rank learns
of a stop or of a loss that is not finite after the same step, and no step is held up.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step came to, over all ranks."""

    step: int
    loss: float
    stop: bool
    regroup: bool = False
    """Whether nodes want to join."""

    @property
    def is_finite(self) -> bool:
        """Whether training can go on from here."""
        return math.isfinite(self.loss)


class Signals:
    """Sends each step's loss and stop wish, and gives back outcomes in order.

    Args:
        world_size: How many ranks there are.
        device: Where they train.
        lag: How many outcomes may be under way.
    """

    def __init__(self, world_size: int, device: torch.device, lag: int = 1) -> None:
        self._world_size = world_size
        self._device = device
        self._lag = lag
        self._pending: deque[tuple[int, Tensor, dist.Work | None]] = deque()

    @property
    def under_way(self) -> int:
        """How many outcomes have not been read."""
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether one must be read before the next is posted."""
        return self.under_way >= self._lag

    def post(self, step: int, loss: Tensor, *, stop: bool, regroup: bool = False) -> None:
        """Start agreeing on a step."""
        wishes = torch.tensor([float(stop), float(regroup)], dtype=torch.float64, device=self._device)
        values = torch.cat([loss.double().reshape(1), wishes])
        work = dist.all_reduce(values, async_op=True)
        self._pending.append((step, values, work))

    def read(self) -> Outcome | None:
        """The outcome of the earliest step that is under way; None when none is."""
        if not self._pending:
            return None
        step, values, work = self._pending.popleft()
        if work is not None:
            work.wait()
        loss, stop, regroup = values.tolist()
        return Outcome(step=step, loss=loss / self._world_size, stop=stop > 0, regroup=regroup > 0)


def mean_over_ranks(value: float, device: torch.device) -> float:
    """The mean of a number over all ranks."""
    total = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def any_rank(claim: bool, device: torch.device) -> bool:
    """Whether the claim holds on some rank."""
    total = torch.tensor(float(claim), device=device)
    dist.all_reduce(total)
    return total.item() > 0
