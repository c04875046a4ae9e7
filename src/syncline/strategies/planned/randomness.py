"""Random numbers of shards: each shard of an op its own stream, its copies on other ranks the same one.

Before an op that draws numbers the device's generator is seeded from the first rank's seed, the op and the
shard. So a run can be repeated and resumed, and a block that is recomputed draws the same numbers again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


class RandomStreams:
    """The seeds of one rank's random ops."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seed = 0
        self._calls = 0
        self._given: int | None = None
        self._part = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Within, ops are seeded for one forward and backward pass; then the generator is as it was.

        The seed is what the first rank's generator was seeded with, and how often that was used already: all
        ranks agree on it, whatever their own generators do.
        """
        generator = _generator(self._device)
        given = generator.initial_seed()
        self._calls = self._calls + 1 if given == self._given else 0
        self._given = given
        seed = _number(f"{given}/{self._calls}")
        agreed = torch.tensor(seed, dtype=torch.long, device=self._device)
        dist.broadcast(agreed, src=0)
        self._seed, self._part = int(agreed.item()), 0
        state = generator.get_state()
        try:
            yield
        finally:
            generator.set_state(state)

    def next_part(self) -> None:
        """Go on to new numbers, for the next micro-batch."""
        self._part += 1

    def start(self, op: str, shard: int) -> None:
        """Seed the generator for one shard of an op."""
        _generator(self._device).manual_seed(_number(f"{self._seed}/{self._part}/{op}/{shard}"))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return torch.get_device_module(device).default_generators[device.index or 0]
