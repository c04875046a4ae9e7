"""The optimizer of a rank's heads, and their part of a checkpoint.

Heads are not part of the model, so their state has names of its own, after the place where the block ends:
a training that cuts there too goes on with them, any other starts them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from syncline.strategies.local.block import Block
from syncline.strategies.rebinding import constructor_defaults
from syncline.strategies.state import AUXILIARY, GROUPS_KEY, collect_state

_STEP = f"{AUXILIARY}step"
_READOUT = f"{AUXILIARY}readout."
_READOUTS = f"{AUXILIARY}readouts"
CUTS_KEY = f"{AUXILIARY}cuts"
"""Where the blocks end, joined by +: what a checkpoint needs besides to show its heads."""


class HeadState:
    """What a rank's heads are trained with, and saved as."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        blocks: Sequence[Block],
        *,
        cuts: Sequence[str],
        readouts: Sequence[str],
    ) -> None:
        """The heads' optimizer is of the same kind as the model's, and follows its learning rate.

        `blocks` are this rank's, `cuts` those of the whole model, `readouts` the weights that some rank reads
        copies of.
        """
        self._leader = optimizer
        self._cuts = "+".join(cuts)
        self._readouts = "+".join(readouts)
        self._heads = nn.ModuleDict(
            {block.name.replace(".", "_"): block.head for block in blocks if block.head is not None}
        )
        parameters = [one for one in self._heads.parameters() if one.requires_grad]
        self._optimizer = (
            type(optimizer)(parameters, **constructor_defaults(optimizer)) if parameters else None  # pyrefly: ignore
        )

    def step(self) -> None:
        """One update of the heads, at the learning rate of the model."""
        if self._optimizer is None:
            return
        self._optimizer.param_groups[0]["lr"] = self._leader.param_groups[0]["lr"]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def collect(self, snapshots: Mapping[str, Tensor], done: int) -> dict[str, Any]:
        """The heads, copies of shared weights, and how many steps were made."""
        state: dict[str, Any] = {f"{_READOUT}{name}": tensor for name, tensor in snapshots.items()}
        state |= {_STEP: torch.tensor(done), CUTS_KEY: self._cuts, _READOUTS: self._readouts}
        return {**self._own(), **state}

    def apply(self, state: Mapping[str, Any]) -> int:
        """Take over the heads that the state has; the steps made, 0 when it does not say."""
        with torch.no_grad():
            for name, value in self._own().items():
                if isinstance(value, Tensor) and name in state:
                    value.copy_(state[name])
        return int(state.get(_STEP, 0))

    def apply_readouts(self, state: Mapping[str, Any], snapshots: Mapping[str, Tensor]) -> bool:
        """Take over copies of shared weights; False, on every rank alike, when the state lacks some."""
        if state.get(_READOUTS, "") != self._readouts:
            return False
        with torch.no_grad():
            for name, tensor in snapshots.items():
                tensor.copy_(state[f"{_READOUT}{name}"])
        return True

    def _own(self) -> dict[str, Any]:
        if self._optimizer is None:
            return {}
        inner = collect_state(self._heads, self._optimizer)
        inner.pop(GROUPS_KEY)
        return {f"{AUXILIARY}heads.{name}": value for name, value in inner.items()}
