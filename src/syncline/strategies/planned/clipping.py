"""The total norm of gradients that are cut over ranks, and scaling them down to a limit."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.ranks import LiveMesh


def clip_gradients(
    placed: Iterable[PlacedParameter], others: Iterable[Tensor], mesh: LiveMesh, limit: float
) -> None:
    """Scale all gradients so that their total norm, over all ranks' parts, is at most the limit.

    Args:
        placed: Parameters on the mesh.
        others: Parameters that every rank has whole.
        mesh: The ranks.
        limit: The largest norm.
    """
    squares: dict[tuple[int, ...], Tensor] = {}
    gradients: list[Tensor] = []
    kinds = [(one.stored, one.placing.cut_by) for one in placed] + [(one, ()) for one in others]
    for tensor, axes in kinds:
        if tensor.grad is None:
            continue
        gradients.append(tensor.grad)
        square = tensor.grad.detach().float().square().sum()
        squares[axes] = squares[axes] + square if axes in squares else square
    total = torch.zeros((), device=mesh.device)
    # The same sets of axes in the same order on every rank.
    for axes in sorted(squares):
        if axes:
            dist.all_reduce(squares[axes], group=mesh.group(axes))
        total = total + squares[axes]
    scale = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
