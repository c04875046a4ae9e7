"""Models as rows of layers, each of which takes what the one before gives: what a pipeline is cut from.

The layers are the model's own, with its weights. A model whose class is not known here, and which is no
`nn.Sequential`, has no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from syncline.workloads.models.alexnet import AlexNet
from syncline.workloads.models.gpt2 import GPT2
from syncline.workloads.models.mlp import MLP
from syncline.workloads.models.vgg import VGG


@dataclass(frozen=True, slots=True)
class Tied:
    """A layer that shares its one weight with another of the row."""

    weight: Tensor
    forward: Callable[[Any, Tensor], Tensor]
    """What it gives, from a module that holds the weight and from its input."""


Row = list[nn.Module | Tied]


def layer_row(model: nn.Module) -> Row | None:
    """The layers of a model in a row; None when they are not known to form one."""
    make = _ROWS.get(type(model))
    return None if make is None else make(model)


def row_refusal(model: nn.Module) -> str | None:
    """Why a model has no row."""
    if type(model) in _ROWS:
        return None
    known = ", ".join(kind.__name__ for kind in _ROWS)
    return f"{type(model).__name__} is not written as a row of layers; those that are: {known}."


class _Positions(nn.Module):
    """What GPT-2 adds to the embeddings of tokens."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.positions = model.positions
        self.dropout = model.dropout

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.positions[: x.shape[1]])


def _gpt2(model: GPT2) -> Row:
    weight = model.tokens.weight
    embed = Tied(weight, lambda holder, tokens: F.embedding(tokens, holder.weight))
    head = Tied(weight, lambda holder, x: F.linear(x, holder.weight))
    return [embed, _Positions(model), *model.blocks, model.norm, head]


def _classifier(model: VGG | AlexNet) -> Row:
    return [*model.blocks, *model.hidden, model.head]


def _mlp(model: MLP) -> Row:
    return [nn.Flatten(), *model.blocks, model.head]


def _sequential(model: nn.Sequential) -> Row:
    return [*model]


_ROWS: dict[type[nn.Module], Callable[[Any], Row]] = {
    GPT2: _gpt2,
    VGG: _classifier,
    AlexNet: _classifier,
    MLP: _mlp,
    nn.Sequential: _sequential,
}
