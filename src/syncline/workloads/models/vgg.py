"""VGG-16: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition"
(2014), configuration D."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from syncline.workloads.models.checks import require_fraction, require_positive
from syncline.workloads.models.convolution import init_he
from syncline.workloads.workload import InputSpec

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""For each stage its width, as a multiple of the first, and its number of convolutions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VGGConfig:
    """Shape of a VGG-16."""

    width: int = 64
    """Channels of the first stage; the others are in proportion."""
    hidden: int = 4096
    """Units of the two hidden linear layers."""
    image: int = 224
    """Height and width of an image, in pixels; at least 32, since five poolings halve it."""
    classes: int = 1000
    """Classes told apart."""
    dropout: float = 0.5
    """Share of the outputs of each hidden linear layer that is dropped."""

    def __post_init__(self) -> None:
        require_positive(self, "width", "hidden", "classes")
        require_fraction(self, "dropout")
        if self.image < 2 ** len(_STAGES):
            raise ValueError(f"image is {self.image} pixels, it must be at least {2 ** len(_STAGES)}.")


class VGG(nn.Module):
    """Thirteen 3×3 convolutions in five pooled stages, and three linear layers."""

    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        channels = 3
        layers: list[nn.Module] = []
        for multiple, count in _STAGES:
            for _ in range(count):
                layers += [nn.Conv2d(channels, config.width * multiple, 3, padding=1), nn.ReLU()]
                channels = config.width * multiple
            layers.append(nn.MaxPool2d(2))
        self.blocks = nn.Sequential(*layers)
        side = config.image // 2 ** len(_STAGES)
        self.hidden = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * side**2, config.hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
        )
        self.head = nn.Linear(config.hidden, config.classes)
        init_he(self, self.head)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, height, width)."""
        return self.head(self.hidden(self.blocks(x)))


def input_spec(config: VGGConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="image", shape=(3, config.image, config.image), classes=config.classes)
