"""What all ranks must agree on after each step, in one small collective that nobody waits for.

The mean loss, and whether anyone was told to stop, are summed over the ranks while the next step runs
and read one step later. So every rank learns of a stop or of a loss that is not finite after the same
step, and no step is held up.
"""

from __future__ import annotations

import math
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

    @property
    def is_finite(self) -> bool:
        """Whether training can go on from here."""
        return math.isfinite(self.loss)


class Signals:
    """Sends each step's loss and stop wish, and gives back the last step's outcome."""

    def __init__(self, world_size: int, device: torch.device) -> None:
        self._world_size = world_size
        self._device = device
        self._pending: tuple[int, Tensor, dist.Work | None] | None = None

    def post(self, step: int, loss: Tensor, *, stop: bool) -> None:
        """Start agreeing on a step; the one before must have been read."""
        values = torch.stack([loss.double(), torch.tensor(float(stop), device=self._device).double()])
        work = dist.all_reduce(values, async_op=True)
        self._pending = (step, values, work)

    def read(self) -> Outcome | None:
        """The outcome of the step last posted; None when it was read already."""
        if self._pending is None:
            return None
        (step, values, work), self._pending = self._pending, None
        if work is not None:
            work.wait()
        loss, stop = values.tolist()
        return Outcome(step=step, loss=loss / self._world_size, stop=stop > 0)


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
