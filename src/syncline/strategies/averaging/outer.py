"""DiLoCo's outer optimizer: the shared weights move by the nodes' mean change, with Nesterov momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from syncline.strategies.averaging.merging import Merge
from syncline.strategies.averaging.wire import Average


class OuterNesterov:
    """The rule that takes over an average as a gradient of weights that all nodes share.

    Args:
        start: The shared weights at the start.
        lr: Of the outer optimizer.
        momentum: Of the outer optimizer.
    """

    parts: ClassVar[int] = 2

    def __init__(self, start: Sequence[Tensor], *, lr: float, momentum: float) -> None:
        self.shared = [nn.Parameter(values.clone()) for values in start]
        # As a group, for a rank's parts of some weights may be empty, and a list must not.
        groups = [{"params": self.shared}]
        self._optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)

    def tell(self, average: Average) -> Tensor:
        """The mean, and from what the node said to it."""
        mean = average.mean.clone()
        return torch.cat([mean, average.movement()])

    def merge(self, told: Sequence[Tensor], waited: int) -> Merge:
        """Move the shared weights; a node keeps what it did since it sent, and what 16 bits left behind."""
        halves = [each.chunk(self.parts) for each in told]
        for shared, (mean, _) in zip(self.shared, halves, strict=True):
            shared.grad = shared.detach() - mean
        self._optimizer.step()
        changes = [
            (shared.detach() - mean).add_(movement)
            for shared, (mean, movement) in zip(self.shared, halves, strict=True)
        ]
        return Merge(1.0, changes)

    def restart(self, values: Sequence[Tensor]) -> None:
        """Begin anew from values that all nodes have alike."""
        for shared, value in zip(self.shared, values, strict=True):
            shared.data.copy_(value)
        self._optimizer.state.clear()

    def tensors(self) -> dict[str, Tensor]:
        """The shared weights and their momenta."""
        named = {f"shared.{number}": each.detach() for number, each in enumerate(self.shared)}
        for number, shared in enumerate(self.shared):
            momentum = self._optimizer.state[shared].get("momentum_buffer")
            named[f"momentum.{number}"] = torch.zeros_like(shared) if momentum is None else momentum
        return named

    def apply(self, tensors: dict[str, Tensor], *, has_moved: bool) -> None:
        """Take over what `tensors` gave; before the first move there are no momenta."""
        self.restart([tensors[f"shared.{number}"] for number in range(len(self.shared))])
        for number, shared in enumerate(self.shared):
            if has_moved and self._optimizer.defaults["momentum"]:
                self._optimizer.state[shared]["momentum_buffer"] = tensors[f"momentum.{number}"].clone()
