"""Random numbers as a function of seed, step and rank, so that a resumed run repeats them."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(*key: int) -> None:
    """Seed torch on all devices, NumPy and Python from a few whole numbers."""
    words = np.random.SeedSequence(key).generate_state(3)
    torch.manual_seed(int(words[0]))
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))
