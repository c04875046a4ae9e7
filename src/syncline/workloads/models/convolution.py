"""What the convolutional models share: normalisation, initial weights, the stem for small images."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from torch import nn

Norm: TypeAlias = Literal["batch", "group"]
"""Batch normalisation, as published, or group normalisation, which no other sample influences."""

Stem: TypeAlias = Literal["imagenet", "cifar"]
"""First layers that reduce a large image quickly, or that keep a small one whole."""

_CHANNELS_PER_GROUP = 16


def make_norm(norm: Norm, channels: int, eps: float = 1e-5) -> nn.Module:
    """The normalisation of one activation.

    Groups have 16 channels each (Wu and He, "Group Normalization", 2018, table 3), or all channels
    when there are fewer.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels, eps=eps)
    groups = math.gcd(channels, max(1, channels // _CHANNELS_PER_GROUP))
    return nn.GroupNorm(groups, channels, eps=eps)


def init_he(model: nn.Module, head: nn.Linear) -> None:
    """Gives convolutions and linear layers their initial weights; biases start at zero.

    Layers followed by ReLU get the normal distribution of He et al., "Delving Deep into Rectifiers"
    (2015), by fan-out for convolutions as in the authors' residual networks. The last layer, the head,
    starts with small weights, so that the first loss is near chance.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear) and module is not head:
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
