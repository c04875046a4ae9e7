"""Inception v3 without the auxiliary head: Szegedy et al., "Rethinking the Inception Architecture for
Computer Vision" (2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from syncline.workloads.models.checks import require_fraction, require_positive
from syncline.workloads.models.convolution import Norm, Stem, init_he, make_norm
from syncline.workloads.workload import InputSpec

_SMALLEST_IMAGE = {"imagenet": 75, "cifar": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class InceptionConfig:
    """Shape of an Inception v3."""

    narrow: Literal[1, 2, 4, 8, 16] = 1
    """Every number of channels is divided by this."""
    image: int = 299
    """Height and width of an image, in pixels."""
    stem: Stem = "imagenet"
    """`imagenet`: reduces the image eightfold. `cifar`: halves it, for images of about 32 pixels."""
    classes: int = 1000
    """Classes told apart."""
    norm: Norm = "batch"
    """`batch` as published; `group` makes the result of a sample independent of the rest of its batch."""
    dropout: float = 0.2
    """Share of the features that is dropped before the linear layer."""

    def __post_init__(self) -> None:
        require_positive(self, "classes")
        require_fraction(self, "dropout")
        smallest = _SMALLEST_IMAGE[self.stem]
        if self.image < smallest:
            raise ValueError(f"image is {self.image} pixels, the stem '{self.stem}' needs {smallest}.")


class Branches(nn.ModuleList):
    """Modules that all see the same activation; their channels are concatenated."""

    def forward(self, x: Tensor) -> Tensor:
        """The joined channels of all branches."""
        return torch.cat([branch(x) for branch in self], dim=1)


class _Maker:
    """Makes convolutions and the paper's modules, all with one normalisation and one narrowing."""

    def __init__(self, config: InceptionConfig) -> None:
        self.config = config

    def conv(
        self, inputs: int, outputs: int, kernel: int | tuple[int, int], *, stride: int = 1, same: bool = True
    ) -> nn.Sequential:
        """Convolution, normalisation, ReLU; `same` pads so that the image keeps its size."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if same else (0, 0)
        narrow = self.config.narrow
        inputs = inputs if inputs == 3 else inputs // narrow
        return nn.Sequential(
            nn.Conv2d(inputs, outputs // narrow, (height, width), stride=stride, padding=padding, bias=False),
            make_norm(self.config.norm, outputs // narrow, eps=1e-3),
            nn.ReLU(),
        )

    def chain(self, inputs: int, *steps: tuple[int, int | tuple[int, int]]) -> nn.Sequential:
        """Convolutions one after another, each given as (outputs, kernel)."""
        layers = []
        for outputs, kernel in steps:
            layers.append(self.conv(inputs, outputs, kernel))
            inputs = outputs
        return nn.Sequential(*layers)

    def pooled(self, inputs: int, outputs: int) -> nn.Sequential:
        """Mean over 3×3, then a 1×1 convolution."""
        return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), self.conv(inputs, outputs, 1))

    def reducing(self, chain: nn.Sequential, inputs: int, outputs: int) -> nn.Sequential:
        """A chain followed by the 3×3 convolution with stride 2 that ends a stage."""
        return nn.Sequential(*chain, self.conv(inputs, outputs, 3, stride=2, same=False))

    def square(self, inputs: int, pool: int) -> Branches:
        """Figure 5 of the paper, with the first 3×3 pair kept as one 5×5."""
        return Branches(
            [
                self.conv(inputs, 64, 1),
                self.chain(inputs, (48, 1), (64, 5)),
                self.chain(inputs, (64, 1), (96, 3), (96, 3)),
                self.pooled(inputs, pool),
            ]
        )

    def reduce_first(self, inputs: int) -> Branches:
        """From the 5×5 modules to the 7×7 ones: half the height and width (figure 10)."""
        return Branches(
            [
                self.conv(inputs, 384, 3, stride=2, same=False),
                self.reducing(self.chain(inputs, (64, 1), (96, 3)), 96, 96),
                nn.MaxPool2d(3, 2),
            ]
        )

    def factorised(self, inputs: int, inner: int) -> Branches:
        """Figure 6: 7×7 convolutions as pairs of 1×7 and 7×1."""
        row, column = (1, 7), (7, 1)
        return Branches(
            [
                self.conv(inputs, 192, 1),
                self.chain(inputs, (inner, 1), (inner, row), (192, column)),
                self.chain(inputs, (inner, 1), (inner, column), (inner, row), (inner, column), (192, row)),
                self.pooled(inputs, 192),
            ]
        )

    def reduce_second(self, inputs: int) -> Branches:
        """From the 7×7 modules to the last ones: half the height and width again."""
        return Branches(
            [
                self.reducing(self.chain(inputs, (192, 1)), 192, 320),
                self.reducing(self.chain(inputs, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 192),
                nn.MaxPool2d(3, 2),
            ]
        )

    def expanded(self, inputs: int) -> Branches:
        """Figure 7: 1×3 and 3×1 side by side."""
        return Branches(
            [
                self.conv(inputs, 320, 1),
                nn.Sequential(self.conv(inputs, 384, 1), self._crossed()),
                nn.Sequential(self.chain(inputs, (448, 1), (384, 3)), self._crossed()),
                self.pooled(inputs, 192),
            ]
        )

    def stem(self) -> nn.Sequential:
        """The layers before the first module."""
        if self.config.stem == "cifar":
            return nn.Sequential(self.chain(3, (64, 3), (192, 3)), nn.MaxPool2d(3, 2))
        return nn.Sequential(
            self.conv(3, 32, 3, stride=2, same=False),
            self.conv(32, 32, 3, same=False),
            self.conv(32, 64, 3),
            nn.MaxPool2d(3, 2),
            self.conv(64, 80, 1),
            self.conv(80, 192, 3, same=False),
            nn.MaxPool2d(3, 2),
        )

    def _crossed(self) -> Branches:
        return Branches([self.conv(384, 384, (1, 3)), self.conv(384, 384, (3, 1))])


class Inception(nn.Module):
    """Stem, eleven modules of parallel branches, mean over the image, one linear layer."""

    def __init__(self, config: InceptionConfig) -> None:
        super().__init__()
        make = _Maker(config)
        self.stem = make.stem()
        self.blocks = nn.Sequential(
            make.square(192, 32),
            make.square(256, 64),
            make.square(288, 64),
            make.reduce_first(288),
            *(make.factorised(768, inner) for inner in (128, 160, 160, 192)),
            make.reduce_second(768),
            make.expanded(1280),
            make.expanded(2048),
        )
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(2048 // config.narrow, config.classes)
        init_he(self, self.head)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, height, width)."""
        return self.head(self.dropout(self.blocks(self.stem(x)).mean((2, 3))))


def input_spec(config: InceptionConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="image", shape=(3, config.image, config.image), classes=config.classes)
