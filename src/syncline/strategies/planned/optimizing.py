"""Lets the user's optimizer update this rank's parts of the parameters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn, optim

from syncline.errors import StrategyError
from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.ranks import LiveMesh
from syncline.workloads.optimizers import FusedAdam, FusedAdamW

_ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    FusedAdam,
    FusedAdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adagrad,
    optim.Adadelta,
    optim.RMSprop,
    optim.Rprop,
    optim.ASGD,
)
"""Optimizers that treat each element by itself, so that a part can be updated without the others."""


_NEEDS_WHOLE = (optim.Adafactor, optim.LBFGS, optim.SparseAdam)
"""Optimizers that look at a parameter as a whole, in ways that DTensor has no rules for."""


class Optimizing:
    """One optimizer on this rank.

    An optimizer that is known to work element by element holds plain local tensors, which is fast, and so
    does any where no parameter is cut. Others hold DTensors, so that what they compute of a whole is right.
    """

    def __init__(
        self,
        optimizer: optim.Optimizer,
        names: Mapping[int, str],
        model: nn.Module,
        placed: Mapping[str, PlacedParameter],
        mesh: LiveMesh,
    ) -> None:
        """`names`: those of the parameters that the optimizer was made with, by identity."""
        self._optimizer = optimizer
        self._placed = placed
        self._mesh = mesh
        self._present = dict(model.named_parameters())
        cut = [name for name, one in placed.items() if one.placing.cut_by]
        self._is_elementwise = type(optimizer) in _ELEMENTWISE or not cut
        if isinstance(optimizer, _NEEDS_WHOLE) and cut:
            raise StrategyError(
                f"{type(optimizer).__name__} looks at whole parameters, but the plan cuts {len(cut)} of "
                f"them, the first is {cut[0]}.\nUse an optimizer that works by elements, such as AdamW "
                "or SGD, or --strategy data."
            )
        self.others: list[Tensor] = []
        for group in optimizer.param_groups:
            group["params"] = [self._held(names[id(old)]) for old in group["params"]]

    def _held(self, name: str) -> Tensor:
        one = self._placed.get(name)
        if one is None:
            self.others.append(self._present[name])
            return self._present[name]
        return one.stored if self._is_elementwise else self._present[name]

    def step(self) -> None:
        """Update, and forget the gradients."""
        if not self._is_elementwise:
            self._hand_over()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _hand_over(self) -> None:
        for name, one in self._placed.items():
            if one.stored.grad is None:
                continue
            self._present[name].grad = one.placing.as_dtensor(one.stored.grad, self._mesh)
            one.stored.grad = None
