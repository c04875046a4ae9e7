"""Handwritten digits of 8 x 8 pixels, from scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from syncline.errors import MissingExtraError
from syncline.workloads.data.images import image_data
from syncline.workloads.workload import Data, InputSpec

_BRIGHTEST = 16
_EVALUATION_EVERY = 5


def load_digits(input: InputSpec) -> Data:
    """1,797 digits; every fifth is for evaluation."""
    try:
        from sklearn.datasets import load_digits as load_bundled
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "digits", "The data set 'digits'") from error
    bundled: Any = load_bundled()
    labels = bundled.target
    images = np.rint(bundled.data * (255 / _BRIGHTEST)).astype(np.uint8).reshape(-1, 1, 8, 8)
    kept = np.arange(len(labels)) % _EVALUATION_EVERY == _EVALUATION_EVERY - 1
    return image_data(
        "digits", input, train=(images[~kept], labels[~kept]), evaluation=(images[kept], labels[kept])
    )
