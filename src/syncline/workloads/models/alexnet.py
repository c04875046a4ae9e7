"""AlexNet with one tower: Krizhevsky, "One weird trick for parallelizing convolutional neural networks"
(2014)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from syncline.workloads.models.checks import require_fraction, require_positive
from syncline.workloads.models.convolution import Stem, init_he
from syncline.workloads.workload import InputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AlexNetConfig:
    """Shape of an AlexNet."""

    width: int = 64
    """Channels of the first convolution; the others are in proportion."""
    hidden: int = 4096
    """Units of the two hidden linear layers."""
    image: int = 224
    """Height and width of an image, in pixels."""
    stem: Stem = "imagenet"
    """`imagenet`: 11×11 with stride 4. `cifar`: 3×3 with stride 1, for images of about 32 pixels."""
    classes: int = 1000
    """Classes told apart."""
    dropout: float = 0.5
    """Share of the inputs of each hidden linear layer that is dropped."""

    def __post_init__(self) -> None:
        require_positive(self, "width", "hidden", "image", "classes")
        require_fraction(self, "dropout")
        if self.final_side < 1:
            raise ValueError(f"image is {self.image} pixels, too few for the stem '{self.stem}'.")

    @property
    def final_side(self) -> int:
        """Height and width of the last activation before the linear layers."""
        side = (self.image + 4 - 11) // 4 + 1 if self.stem == "imagenet" else self.image
        for _ in range(3):
            side = (side - 3) // 2 + 1
        return side


class AlexNet(nn.Module):
    """Five convolutions, three of them pooled, and three linear layers."""

    def __init__(self, config: AlexNetConfig) -> None:
        super().__init__()
        c1, c2, c3, c4 = (config.width * n for n in (1, 3, 6, 4))
        first = (
            nn.Conv2d(3, c1, 11, stride=4, padding=2)
            if config.stem == "imagenet"
            else nn.Conv2d(3, c1, 3, padding=1)
        )
        kernel = 5 if config.stem == "imagenet" else 3
        self.blocks = nn.Sequential(
            nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(3, 2)),
            nn.Sequential(nn.Conv2d(c1, c2, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
            nn.Sequential(nn.Conv2d(c2, c3, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(c3, c4, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(c4, c4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        )
        self.hidden = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(config.dropout),
            nn.Linear(c4 * config.final_side**2, config.hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(config.hidden, config.classes)
        init_he(self, self.head)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of images (batch, 3, height, width)."""
        return self.head(self.hidden(self.blocks(x)))


def input_spec(config: AlexNetConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="image", shape=(3, config.image, config.image), classes=config.classes)
