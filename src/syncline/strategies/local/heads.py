"""Heads: what a block that is not the last predicts with, so that it has a loss of its own.

A head turns the activation that leaves a block into logits of the model's own shape; the model's own loss
follows. `linear`, `mlp` and `conv` are small networks of a fixed form, `mirror` copies layers above the
block, `readout` shares the model's own projection onto the vocabulary, which is costly to have many times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from syncline.errors import StrategyError

HeadKind: TypeAlias = Literal["linear", "mlp", "conv", "mirror", "readout"]
Shape: TypeAlias = tuple[int, ...]


class Head(nn.Module):
    """From a block's activation to logits."""

    def forward(self, activation: Tensor, batch: Sequence[Tensor], state: Mapping[str, Tensor]) -> Tensor:
        """Logits; `batch` for masks and the like, `state` for weights of the model that are shared."""
        raise NotImplementedError


class FixedHead(Head):
    """A small network of a fixed form."""

    def __init__(self, layers: nn.Module, logits: Shape) -> None:
        super().__init__()
        self.layers = layers
        self._logits = logits

    def forward(self, activation: Tensor, batch: Sequence[Tensor], state: Mapping[str, Tensor]) -> Tensor:
        """The network's output in the shape of the logits."""
        return self.layers(activation).reshape(self._logits)


class ReadoutHead(Head):
    """A norm of its own, then the model's projection onto the vocabulary, which it does not train.

    The block that owns the projection trains it with its loss, as any weight of its own.
    """

    def __init__(self, width: int, weight: str, bias: str | None, logits: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self._weight = weight
        self._bias = bias
        self._logits = logits

    def forward(self, activation: Tensor, batch: Sequence[Tensor], state: Mapping[str, Tensor]) -> Tensor:
        """Logits by the shared projection."""
        bias = None if self._bias is None else state[self._bias]
        return F.linear(self.norm(activation), state[self._weight], bias).reshape(self._logits)


class _Mean(nn.Module):
    """The mean over all dims between the first and the last."""

    def forward(self, activation: Tensor) -> Tensor:
        return activation.flatten(1, -2).mean(1)


def fixed_head(kind: Literal["linear", "mlp", "conv"], activation: Shape, logits: Shape) -> Head:
    """A head of a fixed form for an activation of one shape and logits of another.

    Raises:
        StrategyError: The form does not fit the shapes.
    """
    if len(activation) == 4 and len(logits) == 2:
        return FixedHead(_IMAGE_HEADS[kind](activation, logits[-1]), logits)
    if kind == "conv":
        raise StrategyError(
            f"local: head=conv needs feature maps (batch, channels, height, width), but what crosses has the "
            f"shape {activation}.\nUse head=linear, mlp or mirror."
        )
    layers: list[nn.Module] = []
    if len(activation) > 2 and len(logits) == 2 and activation[0] == logits[0]:
        layers.append(_Mean())
    elif math.prod(activation[:-1]) != math.prod(logits[:-1]):
        raise StrategyError(
            f"local: head={kind} cannot make logits of shape {logits} from an activation of shape "
            f"{activation}.\nUse head=mirror, which copies the layers that the model has for it."
        )
    width, classes = activation[-1], logits[-1]
    if len(activation) > 2:
        layers.append(nn.LayerNorm(width))
    if kind == "mlp":
        layers += [nn.Linear(width, width), nn.GELU()]
    return FixedHead(nn.Sequential(*layers, nn.Linear(width, classes)), logits)


def _image_linear(activation: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(activation[1], classes))


def _image_mlp(activation: Shape, classes: int) -> nn.Module:
    """Belilovsky et al.'s "MLP-aux": pooled to 2 x 2, then three linear layers."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), *_three_linear(4 * activation[1], classes))


def _image_conv(activation: Shape, classes: int) -> nn.Module:
    """Belilovsky et al.'s "MLP-SR": a quarter of each side, three 1 x 1 convolutions, then as `mlp`."""
    channels, sides = activation[1], [max(1, side // 4) for side in activation[2:]]
    layers: list[nn.Module] = [nn.AdaptiveAvgPool2d((sides[0], sides[1]))]
    for _ in range(3):
        layers += [nn.Conv2d(channels, channels, 1, bias=False), nn.GroupNorm(1, channels), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), *_three_linear(4 * channels, classes)
    )


def _three_linear(width: int, classes: int) -> list[nn.Module]:
    hidden = max(classes, width // 2)
    return [
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    ]


_IMAGE_HEADS: Mapping[str, Callable[[Shape, int], nn.Module]] = {
    "linear": _image_linear,
    "mlp": _image_mlp,
    "conv": _image_conv,
}


def fixed_head_flops(kind: Literal["linear", "mlp", "conv"], activation: Shape, logits: Shape) -> int:
    """FLOPs of a forward pass, counted without computing it."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        fixed_head(kind, activation, logits)(torch.empty(activation), (), {})
    return counter.get_total_flops()
