"""Bringing gradients of stages together: over replicas, and over stages that share a parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.strategies.stages.layout import Layout, SharedParameters


def sum_shared(model: nn.Module, shared: SharedParameters) -> None:
    """Give each holder of a shared parameter the sum of all holders' gradients."""
    parameters = dict(model.named_parameters())
    for name, group in shared.groups.items():
        parameter = parameters.get(name)
        if parameter is None or not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)


def average_over_replicas(tensors: Iterable[Tensor], layout: Layout) -> None:
    """Replace each tensor by its mean over the replicas, in one message."""
    own = list(tensors)
    if layout.replicas == 1 or not own:
        return
    flat = nn.utils.parameters_to_vector(own)
    dist.all_reduce(flat, group=layout.peers)
    nn.utils.vector_to_parameters(flat / layout.replicas, own)


def clip(model: nn.Module, shared: SharedParameters, layout: Layout, limit: float) -> None:
    """Scale gradients down to a total norm over all stages."""
    gradients = _gradients(model)
    counted = [gradient for name, gradient in gradients.items() if shared.counts_here(name)]
    squares = nn.utils.get_total_norm(counted).square() if counted else torch.zeros(())
    squares = squares.to(next(iter(gradients.values())).device) if gradients else squares
    dist.all_reduce(squares, group=layout.pipeline)
    nn.utils.clip_grads_with_norm_(model.parameters(), limit, squares.sqrt())


def _gradients(model: nn.Module) -> Mapping[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
