"""Random numbers of one purpose, kept apart from those of the training itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Inside, the random numbers of torch (CPU), NumPy and Python depend on the key alone.

    So what runs inside does the same on every rank and after every resume. Outside, nothing changes.
    """
    words = np.random.SeedSequence(key).generate_state(3)
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.set_rng_state(torch.Generator().manual_seed(int(words[0])).get_state())
    np.random.seed(words[1])
    random.seed(int(words[2]))
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
