"""Ops whose weights have memory only while they are used: fetched before, given back after, both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from syncline.strategies.planned.ops import Recomputing
from syncline.strategies.planned.parameters import PlacedParameter


class FetchOrder:
    """The order in which a program needs such weights, so that the next ones are fetched meanwhile."""

    def __init__(self) -> None:
        self._users: list[Sequence[PlacedParameter]] = []

    def add(self, weights: Sequence[PlacedParameter]) -> int:
        """The place of a new user at the end."""
        self._users.append(weights)
        return len(self._users) - 1

    def start(self, place: int) -> None:
        """Begin to fetch what the user at a place needs, if there is one."""
        if 0 <= place < len(self._users):
            for one in self._users[place]:
                one.start_gather()


class WithWeights(nn.Module):
    """An op that gets some of its inputs from temporary weights."""

    def __init__(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        weights: Sequence[PlacedParameter | None],
        order: FetchOrder,
        recomputing: Recomputing,
    ) -> None:
        """`weights`: for each input of the op, the weight, or None where it is given."""
        super().__init__()
        self._run = run
        self._weights = weights
        self._own = [one for one in weights if one is not None]
        self._order = order
        self._place = order.add(self._own)
        self._recomputing = recomputing

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The op's outputs."""
        rest = iter(given)
        inputs = [next(rest) if one is None else one.gather() for one in self._weights]
        if not self._recomputing.now:
            self._order.start(self._place + 1)
        outputs = self._run(*inputs)
        del inputs
        if self._recomputing.now:
            # Backward of this block comes next and needs them again.
            return outputs
        for one in self._own:
            one.free()
        if not torch.is_grad_enabled():
            return outputs
        return tuple(
            _FetchAgain.apply(one, self._fetch_again) if one.requires_grad else one for one in outputs
        )

    def _fetch_again(self) -> None:
        for one in self._own:
            one.gather()
        self._order.start(self._place - 1)


class _FetchAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, fetch: Callable[[], None]) -> Tensor:
        ctx.fetch = fetch
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.fetch()
        return gradients[0], None
