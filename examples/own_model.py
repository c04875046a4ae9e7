"""A model of your own for the command line:

syncline train examples.own_model:build --strategy sharded --steps 50
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from syncline import InputSpec, Workload


class Classifier(nn.Module):
    """A small convolutional network; group norm, so that every exact strategy gives the same loss."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The scores of each class."""
        return self.head(self.features(images).flatten(1))


def build() -> Workload:
    """What to train: everything but the model is optional."""
    return Workload(
        model=Classifier(classes=10),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        input=InputSpec(kind="image", shape=(3, 16, 16), classes=10),
    )
