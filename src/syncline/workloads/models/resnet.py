"""Residual networks: He et al., "Deep Residual Learning for Image Recognition" (2015).

Two kinds: for ImageNet (18 to 152 layers, four stages) and for CIFAR-10 (6n+2 layers, three stages).
The stride of a bottleneck is in its 3×3 convolution, as in every implementation since Goyal et al. (2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from syncline.workloads.models.checks import require_positive
from syncline.workloads.models.convolution import Norm, Stem, init_he, make_norm
from syncline.workloads.workload import InputSpec

Shortcut: TypeAlias = Literal["pad", "project"]

_STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks in each stage of the ImageNet kind, by depth (table 1 of the paper)."""
_SHALLOWEST_WITH_BOTTLENECKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetConfig:
    """Shape of a residual network of the ImageNet kind."""

    depth: Literal[18, 34, 50, 101, 152] = 50
    """Layers with weights; from 50 on, blocks are bottlenecks."""
    width: int = 64
    """Channels of the first stage; each further stage doubles them."""
    image: int = 224
    """Height and width of an image, in pixels."""
    stem: Stem = "imagenet"
    """`imagenet`: 7×7 with stride 2, then pooling. `cifar`: 3×3 with stride 1, for about 32 pixels."""
    classes: int = 1000
    """Classes told apart."""
    norm: Norm = "batch"
    """`batch` as published; `group` makes the result of a sample independent of the rest of its batch."""

    def __post_init__(self) -> None:
        require_positive(self, "width", "image", "classes")


@dataclass(frozen=True, slots=True, kw_only=True)
class CifarResNetConfig:
    """Shape of a residual network of the CIFAR kind."""

    depth: int = 110
    """Layers with weights: 6n + 2, for n blocks in each of three stages."""
    width: int = 16
    """Channels of the first stage; each further stage doubles them."""
    image: int = 32
    """Height and width of an image, in pixels."""
    classes: int = 10
    """Classes told apart."""
    norm: Norm = "batch"
    """`batch` as published; `group` makes the result of a sample independent of the rest of its batch."""
    shortcut: Shortcut = "pad"
    """Where a stage begins: zero-padded identity without parameters, as published, or a 1×1 projection."""

    def __post_init__(self) -> None:
        require_positive(self, "width", "image", "classes")
        if self.depth < 8 or self.depth % 6 != 2:
            raise ValueError(f"depth is {self.depth}, it must be 6n + 2: 8, 14, 20, ..., 110.")


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int, norm: Norm) -> nn.Sequential:
    """A convolution without bias that keeps the image's size (but for the stride), and its normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, make_norm(norm, outputs))


class PadShortcut(nn.Module):
    """Every stride-th pixel, with zero channels appended: option A of the paper, without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """The subsampled and widened activation."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


class ResidualBlock(nn.Module):
    """ReLU(branch(x) + shortcut(x)), the branch being two 3×3 convolutions or a bottleneck of three."""

    def __init__(
        self, inputs: int, width: int, stride: int, norm: Norm, *, bottleneck: bool, shortcut: Shortcut
    ) -> None:
        super().__init__()
        self.outputs = width * 4 if bottleneck else width
        sizes = (
            [(inputs, width, 1, 1), (width, width, 3, stride), (width, self.outputs, 1, 1)]
            if bottleneck
            else [(inputs, width, 3, stride), (width, width, 3, 1)]
        )
        layers: list[nn.Module] = []
        for size in sizes:
            layers += [conv_norm(*size, norm), nn.ReLU()]
        self.branch = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != self.outputs:
            self.shortcut = (
                PadShortcut(inputs, self.outputs, stride)
                if shortcut == "pad"
                else conv_norm(inputs, self.outputs, 1, stride, norm)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The activation after this block."""
        return F.relu(self.branch(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, residual blocks, mean over the image, one linear layer."""

    def __init__(self, stem: nn.Module, blocks: list[ResidualBlock], classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(blocks[-1].outputs, classes)
        init_he(self, self.head)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, height, width)."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def build_resnet(config: ResNetConfig) -> ResNet:
    """A residual network of the ImageNet kind."""
    if config.stem == "imagenet":
        stem = nn.Sequential(
            conv_norm(3, config.width, 7, 2, config.norm), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        )
    else:
        stem = nn.Sequential(conv_norm(3, config.width, 3, 1, config.norm), nn.ReLU())
    bottleneck = config.depth >= _SHALLOWEST_WITH_BOTTLENECKS
    blocks = _stages(_STAGES[config.depth], config.width, config.norm, bottleneck, "project")
    return ResNet(stem, blocks, config.classes)


def build_cifar_resnet(config: CifarResNetConfig) -> ResNet:
    """A residual network of the CIFAR kind."""
    stem = nn.Sequential(conv_norm(3, config.width, 3, 1, config.norm), nn.ReLU())
    counts = ((config.depth - 2) // 6,) * 3
    return ResNet(stem, _stages(counts, config.width, config.norm, False, config.shortcut), config.classes)


def input_spec(config: ResNetConfig | CifarResNetConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="image", shape=(3, config.image, config.image), classes=config.classes)


def _stages(
    counts: tuple[int, ...], width: int, norm: Norm, bottleneck: bool, shortcut: Shortcut
) -> list[ResidualBlock]:
    blocks: list[ResidualBlock] = []
    inputs = width
    for stage, count in enumerate(counts):
        for position in range(count):
            stride = 2 if stage > 0 and position == 0 else 1
            channels = width * 2**stage
            block = ResidualBlock(inputs, channels, stride, norm, bottleneck=bottleneck, shortcut=shortcut)
            blocks.append(block)
            inputs = block.outputs
    return blocks
