"""Random numbers of one purpose, kept apart from those of the training itself."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch


class RandomStream:
    """The global random states of torch (CPU), NumPy and Python, as they go on inside `with` blocks only.

    What runs inside draws the same numbers on every rank and after every resume, whatever runs outside;
    what runs outside does not notice.
    """

    def __init__(self, *seed: int) -> None:
        words = np.random.SeedSequence(seed).generate_state(3)
        torch_state = torch.Generator().manual_seed(int(words[0])).get_state()
        numpy_state = np.random.RandomState(words[1]).get_state()
        self._inside: tuple[Any, Any, Any] = (
            torch_state,
            numpy_state,
            random.Random(int(words[2])).getstate(),
        )
        self._outside: tuple[Any, Any, Any] | None = None

    def __enter__(self) -> RandomStream:
        if self._outside is not None:
            raise RuntimeError("a RandomStream cannot be entered twice")
        self._outside = _get_states()
        _set_states(self._inside)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside = _get_states()
        if self._outside is not None:
            _set_states(self._outside)
        self._outside = None

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands."""
        return {"states": self._inside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream stood."""
        self._inside = state["states"]


def _get_states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    torch_state, numpy_state, python_state = states
    torch.set_rng_state(torch_state)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
