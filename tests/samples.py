"""Samples without the question of which kind of batch they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from syncline.workloads.workload import Samples


def fetch(samples: Samples | None, numbers: Sequence[int] | np.ndarray) -> Any:
    assert samples is not None
    return samples.rows(np.asarray(numbers))


def size(samples: Samples | None) -> int:
    assert samples is not None
    return len(samples)
