"""Data of any shape that can be learned: a fixed random teacher says what the targets are.

Every sample is a function of the seed and its number alone, to the last bit, whatever batch it is in.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from syncline.workloads.data.windows import split_windows, window_length
from syncline.workloads.workload import Batch, Data, InputSpec

TRAIN_SAMPLES = 16384
EVALUATION_SAMPLES = 2048

_CAUSES = 16
_HIDDEN = 32
_MOST_CLASSES = 1000
_TEACHER_ROWS = 256
_COARSE = 4
_SUCCESSOR_SHARES = (0.6, 0.25, 0.1, 0.05)
_MOST_TOKENS = 512


def load_synthetic(input: InputSpec, seed: int) -> Data:
    """A task of the model's own shape, the same for the same seed."""
    total = TRAIN_SAMPLES + EVALUATION_SAMPLES
    if input.kind in ("tokens", "token-pairs"):
        chain = _MarkovChain(input, seed)
        train, evaluation = (_ChainSamples(chain, first, last) for first, last in _parts(total))
    else:
        mixtures = _Mixtures(input, seed, total)
        train, evaluation = (_MixtureSamples(mixtures, first, last) for first, last in _parts(total))
    return Data(name="synthetic", train=train, evaluation=evaluation)


def _parts(total: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, TRAIN_SAMPLES), (TRAIN_SAMPLES, total)


class _Mixtures:
    """Vectors or images, each a mixture of few fixed patterns; the label depends on the amounts of each.

    x = a P / 2^s with amounts a of one sample, patterns P (a row each), s so that values are near 1. The
    label is argmax of W2 tanh(W1 a). Amounts and patterns are multiples of 1/4 and 1/16, so that the sums
    are exact in fp32 and no order of adding, hence no batch size, changes a bit of them.
    """

    def __init__(self, input: InputSpec, seed: int, samples: int) -> None:
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 1])))
        causes = min(_CAUSES, math.prod(input.shape))
        amounts = random.standard_normal((samples, causes)).clip(-4, 4)
        amounts = np.rint(amounts * 4) / 4
        self.amounts = torch.from_numpy(amounts.astype(np.float32))
        self.patterns = torch.from_numpy(_patterns(random, causes, input).astype(np.float32))
        self.scale = 2.0 ** -round(math.log2(causes) / 2)
        self.labels = torch.from_numpy(_teach(random, amounts, min(input.classes, _MOST_CLASSES)))
        self.shape = input.shape


class _MixtureSamples:
    def __init__(self, mixtures: _Mixtures, first: int, last: int) -> None:
        self._mixtures = mixtures
        self._first = first
        self._count = last - first

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: np.ndarray) -> Batch:
        chosen = torch.from_numpy(np.asarray(indices, dtype=np.int64) + self._first)
        mixed = self._mixtures.amounts[chosen] @ self._mixtures.patterns
        return mixed.mul_(self._mixtures.scale).view(-1, *self._mixtures.shape), self._mixtures.labels[chosen]


def _patterns(random: np.random.Generator, count: int, input: InputSpec) -> np.ndarray:
    """White noise for vectors; for images smooth noise, as neighbouring pixels are alike in real ones."""
    if input.kind == "features":
        fine = random.standard_normal((count, *input.shape))
    else:
        channels, height, width = input.shape
        coarse = random.standard_normal((count, channels, min(_COARSE, height), min(_COARSE, width)))
        rows = np.arange(height) * coarse.shape[2] // height
        columns = np.arange(width) * coarse.shape[3] // width
        fine = coarse[:, :, rows][:, :, :, columns]
    return (np.rint(fine.clip(-4, 4) * 16) / 16).reshape(count, -1)


def _teach(random: np.random.Generator, amounts: np.ndarray, classes: int) -> np.ndarray:
    first = random.standard_normal((amounts.shape[1], _HIDDEN)) / math.sqrt(amounts.shape[1])
    second = random.standard_normal((_HIDDEN, classes))
    parts = np.array_split(amounts, math.ceil(len(amounts) / _TEACHER_ROWS))
    return np.concatenate([np.argmax(np.tanh(part @ first) @ second, axis=1) for part in parts])


class _MarkovChain:
    """Sequences in which each token has four likely successors, so that a model can come far below log(V).

    Of a large vocabulary only some tokens occur, else no short training would see each of them.
    """

    def __init__(self, input: InputSpec, seed: int) -> None:
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 2])))
        used = min(input.classes, _MOST_TOKENS)
        self.vocabulary = random.choice(input.classes, size=used, replace=False).astype(np.int64)
        self.successors = random.integers(used, size=(used, len(_SUCCESSOR_SHARES)))
        self.key = random.integers(2**64, dtype=np.uint64, size=1)
        self.input = input

    def sequences(self, numbers: np.ndarray) -> np.ndarray:
        """The sequence of each sample of these numbers, a row each."""
        length = window_length(self.input)
        chances = _uniform(self.key, numbers, length)
        choices = np.searchsorted(np.cumsum(_SUCCESSOR_SHARES)[:-1], chances, side="right")
        states = np.empty((len(numbers), length), dtype=np.int64)
        states[:, 0] = chances[:, 0] * len(self.vocabulary)
        for position in range(1, length):
            states[:, position] = self.successors[states[:, position - 1], choices[:, position]]
        return self.vocabulary[states]


class _ChainSamples:
    def __init__(self, chain: _MarkovChain, first: int, last: int) -> None:
        self._chain = chain
        self._first = first
        self._count = last - first

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: np.ndarray) -> Batch:
        sequences = self._chain.sequences(np.asarray(indices, dtype=np.int64) + self._first)
        return split_windows(torch.from_numpy(sequences), self._chain.input)


def _uniform(key: np.ndarray, numbers: np.ndarray, length: int) -> np.ndarray:
    """Random numbers in [0, 1) by sample and position, without a generator: the mixer of SplitMix64."""
    counters = numbers.astype(np.uint64)[:, None] * np.uint64(length) + np.arange(length, dtype=np.uint64)
    mixed = counters * np.uint64(0x9E3779B97F4A7C15) + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
