"""What this rank's last steps came to, kept until it is sure that all ranks have agreed on them.

When a node is lost, the word on the last few steps is lost with it. Those who go on agree on these steps
again, as the mean over their own rows, so that no step is missing in what the run has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean

import torch.distributed as dist
from torch import Tensor

from syncline.training.signals import Outcome

_Told = tuple[float, float | None]
"""The loss of a step, and of an evaluation after it."""


class OwnLosses:
    """The losses of this rank's last steps.

    Args:
        steps: How many are kept.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._losses: dict[int, Tensor] = {}
        self._evaluated: dict[int, Tensor] = {}

    def note(self, step: int, loss: Tensor) -> None:
        """Keep the loss of a step, and forget what is too old."""
        self._losses[step] = loss
        for old in [one for one in self._losses if one <= step - self._steps]:
            del self._losses[old]
            self._evaluated.pop(old, None)

    def note_evaluation(self, step: int, loss: Tensor) -> None:
        """Keep what an evaluation after a step gave."""
        self._evaluated[step] = loss

    def agree(self, steps: Iterable[int]) -> Iterator[Outcome]:
        """What the steps that the first rank names came to; every rank must call this, newcomers too.

        A step that nobody has a loss of is left out.
        """
        named: list[list[int]] = [sorted(steps)]
        dist.broadcast_object_list(named, src=0)
        told: list[dict[int, _Told]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(told, self._told(named[0]))
        for step in named[0]:
            of_step = [one[step] for one in told if step in one]
            if of_step:
                yield _outcome_of(step, of_step)

    def _told(self, steps: Iterable[int]) -> dict[int, _Told]:
        return {
            step: (self._losses[step].item(), _number(self._evaluated.get(step)))
            for step in steps
            if step in self._losses
        }


def _number(loss: Tensor | None) -> float | None:
    return None if loss is None else loss.item()


def _outcome_of(step: int, told: list[_Told]) -> Outcome:
    evaluated = [loss for _, loss in told if loss is not None]
    return Outcome(
        step=step,
        loss=fmean(loss for loss, _ in told),
        stop=False,
        eval_loss=fmean(evaluated) if evaluated else None,
        regroup=False,
    )
