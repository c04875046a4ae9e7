"""Memory that exchanges use again and again: to get fresh memory takes longer than what is done with it."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


class Rooms:
    """Flat tensors that nobody needs now, by type and size."""

    def __init__(self) -> None:
        self._free: dict[torch.dtype, dict[int, list[Tensor]]] = defaultdict(dict)

    def take(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor with anything in it.

        A size that there is none of is a new one, for rates have changed: what was kept for the old goes.
        """
        free = self._free[dtype]
        if found := free.get(size):
            return found.pop()
        if size not in free:
            free.clear()
        free.setdefault(size, [])
        return torch.empty(size, dtype=dtype, device=device)

    def give(self, tensor: Tensor) -> None:
        """Take back what `take` gave, when nobody reads or writes it any more."""
        self._free[tensor.dtype].setdefault(tensor.numel(), []).append(tensor)
