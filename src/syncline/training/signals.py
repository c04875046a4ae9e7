"""What all ranks must agree on after each step, in one small collective that nobody waits for.

The mean loss, and whether anyone was told to stop, are summed over the ranks while the next steps run and
read later: one step later, or as many more as the strategy lets ranks be apart. So every rank learns of a
stop or of a loss that is not finite after the same step, and no step is held up.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.under_way import unrecorded, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step came to, over all ranks."""

    step: int
    loss: float
    stop: bool
    eval_loss: float | None
    """None when nothing was evaluated after the step."""
    regroup: bool
    """Whether nodes want to join."""

    @property
    def is_finite(self) -> bool:
        """Whether training can go on from here."""
        return math.isfinite(self.loss)


class Signals:
    """Sends each step's loss and stop wish, and gives back the outcomes of earlier ones."""

    def __init__(self, device: torch.device, *, weight: float = 1.0, lead: int = 0) -> None:
        """`weight` is that of this rank's losses; `lead` outcomes more than one may be under way."""
        # Ranks that are not in step must not meet in a device's queue of work.
        self._device = device if not lead else torch.device("cpu")
        self._weight = weight
        self._lead = lead
        self.waited_s = 0.0
        """Seconds in which this rank has stood still for the word of others."""
        self._pending: deque[tuple[int, bool, Tensor, dist.Work | None]] = deque()

    def post(
        self, step: int, loss: Tensor, *, stop: bool, eval_loss: Tensor | None = None, regroup: bool = False
    ) -> None:
        """Start agreeing on a step."""
        wishes = [loss.new_tensor(float(wish)) for wish in (stop, regroup)]
        told = [loss * self._weight, loss.new_tensor(self._weight), *wishes]
        told.append(loss.new_zeros(()) if eval_loss is None else eval_loss * self._weight)
        values = torch.stack([one.to(self._device, torch.float64) for one in told])
        with unrecorded():
            work = dist.all_reduce(values, async_op=True)
        self._pending.append((step, eval_loss is not None, values, work))

    def read(self, *, everything: bool = False) -> Iterator[Outcome]:
        """The outcomes of the steps that all ranks have surely made, or of all, waiting for them."""
        while len(self._pending) > (0 if everything else self._lead + 1):
            step, evaluated, values, work = self._pending.popleft()
            began_s = time.perf_counter()
            wait_for(work)
            self.waited_s += time.perf_counter() - began_s
            loss, weight, stop, regroup, eval_loss = values.tolist()
            yield Outcome(
                step=step,
                loss=loss / weight,
                stop=stop > 0,
                regroup=regroup > 0,
                eval_loss=eval_loss / weight if evaluated else None,
            )


def any_rank(claim: bool, device: torch.device, group: dist.ProcessGroup | None = None) -> bool:
    """Whether the claim holds on some rank of a group, by default of all."""
    total = torch.tensor(float(claim), device=device)
    dist.all_reduce(total, group=group)
    return total.item() > 0
