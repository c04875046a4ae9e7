"""Synthetic data: exact, repeatable and learnable."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from samples import fetch
from syncline.workloads.data.registry import load_data
from syncline.workloads.workload import InputSpec

TOKENS = InputSpec(kind="tokens", shape=(16,), classes=256)
PAIRS = InputSpec(kind="token-pairs", shape=(5, 3), classes=300)
IMAGE = InputSpec(kind="image", shape=(3, 8, 8), classes=10)
FEATURES = InputSpec(kind="features", shape=(64,), classes=10)


@pytest.mark.parametrize("input", [TOKENS, PAIRS, IMAGE, FEATURES])
@given(numbers=st.lists(st.integers(0, 2047), min_size=1, max_size=9), seed=st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_a_synthetic_sample_does_not_depend_on_its_batch(
    input: InputSpec, numbers: list[int], seed: int
) -> None:
    samples = load_data("synthetic", input, seed=seed).evaluation
    together = fetch(samples, np.array(numbers))
    alone = [fetch(samples, np.array([number])) for number in numbers]
    assert torch.equal(together[1], torch.cat([batch[1] for batch in alone]))
    first = together[0] if isinstance(together[0], torch.Tensor) else together[0][1]
    parts = [batch[0] if isinstance(batch[0], torch.Tensor) else batch[0][1] for batch in alone]
    assert torch.equal(first, torch.cat(parts))


def test_synthetic_seeds_differ_and_repeat() -> None:
    one, again, other = (
        fetch(load_data("synthetic", TOKENS, seed=seed).train, range(4)) for seed in (0, 0, 1)
    )
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])


@pytest.mark.parametrize(
    ("input", "model", "steps"),
    [
        (TOKENS, nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256)), 80),
        (FEATURES, nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), 80),
        (IMAGE, nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10)), 80),
    ],
)
def test_synthetic_can_be_learned(input: InputSpec, model: nn.Module, steps: int) -> None:
    data = load_data("synthetic", input, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        inputs, targets = fetch(data.train, np.arange(step * 32, (step + 1) * 32))
        loss = cross_entropy(model(inputs).reshape(-1, input.classes), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, targets = fetch(data.evaluation, np.arange(512))
    loss = cross_entropy(model(inputs).reshape(-1, input.classes), targets.reshape(-1))
    assert loss.item() < 0.7 * math.log(input.classes)
