"""Blocking phases: gradients and statistics are averaged over nodes in every step, before the update.

With averaged gradients every optimizer does what it does on one device, Adam included; averaging weights
after the update, as DASO was published, is the same for SGD only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from syncline.strategies.averaging.buckets import Buckets, float_buffers, trained_parameters
from syncline.strategies.averaging.exchange import Exchange
from syncline.strategies.averaging.inside import average_inside
from syncline.strategies.averaging.nodes import NodeGroups
from syncline.strategies.averaging.wire import Wire, WireType, scales_of


class GradientAverage:
    """Averages a model's gradients over nodes; what a 16-bit wire leaves behind goes with the next ones."""

    def __init__(self, model: nn.Module, groups: NodeGroups, wire: WireType, *, every_rank: bool) -> None:
        self._parameters = trained_parameters(model)
        self._buffers = float_buffers(model)
        sizes = Buckets(self._parameters).read()
        self._residuals = [] if wire == "fp32" else [torch.zeros_like(size) for size in sizes]
        self._wires = [Wire(wire, groups.count) for _ in sizes]
        self._plain = [Wire("fp32", groups.count) for _ in range(len(Buckets(self._buffers)))]
        self.exchange = Exchange(groups, every_rank=every_rank)

    def run(self) -> None:
        """Replace gradients and buffers by their means; every rank must call this."""
        gradients = Buckets([_gradient(parameter) for parameter in self._parameters])
        buffers = Buckets(self._buffers)
        average_inside(buffers, self.exchange.groups)
        values = gradients.read()
        for value, residual in zip(values, self._residuals, strict=False):
            value += residual
        averages = self.exchange.average([*self._wires, *self._plain], [*values, *buffers.read()])
        gradients.write(average.mean for average in averages[: len(values)])
        buffers.write(average.mean for average in averages[len(values) :])
        for residual, average in zip(self._residuals, averages, strict=False):
            # What was said is the mean without the movement from there to it.
            residual.copy_(average.sent.stood).sub_(average.mean).add_(average.movement())

    def state(self) -> dict[str, Any]:
        """What a resumed run must know, besides tensors."""
        return {"turn": self.exchange.turn}

    def tensors(self) -> dict[str, Tensor]:
        """What has not been sent yet, and how what is sent is scaled."""
        residuals = {f"residuals.{number}": each for number, each in enumerate(self._residuals)}
        return residuals | {"gradient_scales": scales_of(self._wires)}

    def apply(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Take over what `state` and `tensors` gave."""
        self.exchange.turn = state["turn"]
        for wire, scale in zip(self._wires, tensors["gradient_scales"].tolist(), strict=True):
            wire.scale = scale
        for number, residual in enumerate(self._residuals):
            residual.copy_(tensors[f"residuals.{number}"])


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
