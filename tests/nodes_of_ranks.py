"""Training on real ranks that count as nodes of a given size, for tests of averaging strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.cluster.rank import Rank, current_rank
from syncline.strategies.protocol import Job, StepOptions, TrainStep
from syncline.strategies.registry import parse_strategy

FEATURES = 12
ROWS = 16
"""Of a global batch."""

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def node_rank(node_size: int) -> Rank:
    """This rank, on a node of a given size."""
    index = dist.get_rank()
    return Rank(
        index=index,
        world_size=current_rank().world_size,
        local_index=index % node_size,
        local_world_size=node_size,
    )


class Small(nn.Module):
    """A little of everything: a batch norm, a frozen layer, parameters of several sizes."""

    def __init__(self, *, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(16, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(inputs)))
        return self.last(torch.tanh(self.frozen(hidden)))


class Line(nn.Module):
    """Its loss has the gradient 1 everywhere: what a step moves is the learning rate."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.full((4,), start))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.place.sum() + 0.0 * inputs.sum()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Momentum, decay and two groups."""
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def rows(number: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).sin()


def squared_error(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def open_step(
    strategy: str,
    *,
    node_size: int = 1,
    model: nn.Module | None = None,
    make_optimizer: MakeOptimizer = sgd,
    compute_loss: Callable[[nn.Module, Any], Tensor] = squared_error,
    steps: int | None = None,
    options: StepOptions | None = None,
) -> TrainStep:
    torch.manual_seed(5)
    model = Small(norm=False) if model is None else model
    job = Job(
        model=model,
        optimizer=make_optimizer(model),
        compute_loss=compute_loss,
        rank=node_rank(node_size),
        device=torch.device("cpu"),
        options=options or StepOptions(),
        steps=steps,
    )
    return parse_strategy(strategy).setup(job)


def train_step(step: TrainStep, number: int) -> float:
    """Train on the rows of a step; the mean loss over all ranks."""
    inputs, targets = rows(number)
    part = step.rows(ROWS)
    loss = step((inputs[part], targets[part])).clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def weights(step: TrainStep) -> dict[str, Tensor]:
    """All weights and buffers, whole."""
    from torch.distributed.tensor import DTensor

    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in step.model.state_dict().items()
    }


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max((one[name].float() - other[name].float()).abs().max().item() for name in one)
