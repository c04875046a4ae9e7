"""Sequences of tokens cut into samples, for models that predict what comes next."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from syncline.errors import DataError
from syncline.workloads.workload import Batch, Data, InputSpec

EVALUATION_SHARE = 0.05


class TokenWindows:
    """Windows of a long row of tokens that share no target."""

    def __init__(self, tokens: np.ndarray, input: InputSpec) -> None:
        self._tokens = tokens
        self._input = input
        self._stride = sum(input.shape)
        self._length = window_length(input)

    def __len__(self) -> int:
        """How many whole windows the tokens hold."""
        return max(0, (len(self._tokens) - self._length) // self._stride + 1)

    def rows(self, indices: np.ndarray) -> Batch:
        """The windows of these numbers."""
        starts = np.asarray(indices, dtype=np.int64) * self._stride
        windows = self._tokens[starts[:, None] + np.arange(self._length)]
        return split_windows(torch.from_numpy(windows.astype(np.int64)), self._input)


def window_length(input: InputSpec) -> int:
    """How many tokens one sample takes.

    `tokens` takes one more than the model sees, as the last is a target only. The source and the target
    of `token-pairs` together are the window: the decoder starts from the last token of the source.
    """
    return sum(input.shape) + (input.kind == "tokens")


def split_windows(windows: Tensor, input: InputSpec) -> Batch:
    """Inputs and targets of windows, a row each."""
    if input.kind == "tokens":
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    source = input.shape[0]
    decoder = windows[:, source - 1 : -1].contiguous()
    return (windows[:, :source].contiguous(), decoder), windows[:, source:].contiguous()


def split_text(name: str, tokens: np.ndarray, input: InputSpec) -> Data:
    """Data from one row of bytes: the end of it is for evaluation."""
    length = window_length(input)
    kept = max(int(len(tokens) * EVALUATION_SHARE), length)
    if len(tokens) < 2 * length:
        raise DataError(
            f"Data '{name}' has {len(tokens):,} bytes, but one sample of this model takes {length:,} and "
            f"training and evaluation need one each: {2 * length:,} bytes at least.\n"
            "Give more text, or a model with a shorter sequence."
        )
    cut = len(tokens) - kept
    return Data(
        name=name, train=TokenWindows(tokens[:cut], input), evaluation=TokenWindows(tokens[cut:], input)
    )
