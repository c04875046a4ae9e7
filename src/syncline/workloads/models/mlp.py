"""A multilayer perceptron, as trained in Laskin et al., "Parallel Training of Deep Networks with Local
Updates" (2020): 8 hidden layers of 4096 units on flattened CIFAR-10 images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from syncline.workloads.models.checks import require_positive
from syncline.workloads.models.convolution import init_he
from syncline.workloads.workload import InputSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """Shape of a multilayer perceptron."""

    layers: int = 8
    """Hidden layers."""
    width: int = 4096
    """Units in each hidden layer."""
    features: int = 3072
    """Numbers in one sample."""
    classes: int = 10
    """Classes told apart."""

    def __post_init__(self) -> None:
        require_positive(self, "layers", "width", "features", "classes")


class MLP(nn.Module):
    """Linear layers with ReLU between them. Samples of any shape are flattened."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        sizes = [config.features] + [config.width] * config.layers
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)))
        self.head = nn.Linear(config.width, config.classes)
        init_he(self, self.head)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of samples (batch, ...)."""
        return self.head(self.blocks(x.flatten(1)))


def input_spec(config: MLPConfig) -> InputSpec:
    """What the model takes."""
    return InputSpec(kind="features", shape=(config.features,), classes=config.classes)
