"""How much faster nodes learn while each trains by itself, so that their mean moves as all together would.

Adam divides a gradient by its usual size. That of one node's rows has more noise in it than the mean over all
nodes' rows, so every node, and the mean of all, moves less in a step. A learning rate larger by

    1 / sqrt(1 - q (1 - 1 / N))

makes up for it, q being the share of noise in the square of a node's gradient: by sqrt(N) where noise is all
of it, by 1 where there is none. The mean of the nodes then moves as far, and as noisily, as with synchronous
steps. The share shows in Adam's own averages, m of gradients and v of their squares: noise is in v whole, and
in m^2 by (1 - beta1) / (1 + beta1) of it.

SGD needs nothing of the kind: the mean of its nodes moves as it should already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, optim

from syncline.strategies.averaging.buckets import local_part
from syncline.strategies.averaging.nodes import NodeGroups

_DIVIDING = (optim.Adam, optim.NAdam, optim.RAdam)
"""Optimizers with Adam's averages; AdamW is an Adam."""


class NodeRate:
    """The factor of the learning rate while nodes train by themselves.

    Args:
        given: A factor to keep; None to follow the noise.
        clips: Whether gradients are clipped. Without that a factor is not risked: a rate that is larger
            than the run's own can then be too large.
    """

    def __init__(self, given: float | None, *, clips: bool) -> None:
        self.factor = 1.0 if given is None else given
        self._follows = given is None and clips

    def measure(self, optimizer: optim.Optimizer, groups: NodeGroups, device: torch.device) -> None:
        """Follow what the optimizer knows of the noise; all ranks of a node must call this."""
        if not self._follows or not isinstance(optimizer, _DIVIDING):
            return
        squares = _squares(optimizer, device)
        if groups.size > 1:
            dist.all_reduce(squares, group=groups.inside)
        smooth, usual, counted = squares.tolist()
        if usual > counted:
            noise = min(1.0, max(0.0, (usual - smooth) / (usual - counted)))
            self.factor = 1 / math.sqrt(1 - noise * (1 - 1 / groups.count))

    @contextmanager
    def applied(self, optimizer: optim.Optimizer) -> Iterator[None]:
        """Within, the rate is larger by the factor; decay that goes with the rate stays what it was."""
        before = [(group["lr"], group.get("weight_decay")) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.factor
            if group.get("decoupled_weight_decay"):
                group["weight_decay"] = group["weight_decay"] / self.factor
        try:
            yield
        finally:
            for group, (rate, decay) in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate
                if decay is not None:
                    group["weight_decay"] = decay


def _squares(optimizer: optim.Optimizer, device: torch.device) -> Tensor:
    """Of m^2, of v, and of m^2 if v were all noise: sums over weights, free of the bias of first steps."""
    total = torch.zeros(3, dtype=torch.float64, device=device)
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter) or {}
            step = float(state.get("step", 0))
            if not step:
                continue
            smooth = local_part(state["exp_avg"]).double().square().sum() / (1 - beta1**step) ** 2
            usual = local_part(state["exp_avg_sq"]).double().sum() / (1 - beta2**step)
            total += torch.stack([smooth, usual, usual * (1 - beta1) / (1 + beta1)])
    return total
