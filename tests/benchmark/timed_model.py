"""A model that keeps a clock of its own: it notes when it is called to train."""

import os
import time
from pathlib import Path

from torch import nn

from syncline import InputSpec, Workload
from syncline.cluster.rank import current_rank

SLEEP_S = 0.04


class Timed(nn.Module):
    """A small network that takes at least `SLEEP_S` a call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        rank = current_rank()
        self.calls = Path(f"calls-{rank.world_size}-{rank.index}-{os.getpid()}.txt")

    def forward(self, inputs):
        if self.training:
            with self.calls.open("a") as file:
                file.write(f"{time.perf_counter()}\n")
            time.sleep(SLEEP_S)
        return self.layers(inputs)


def build():
    return Workload(model=Timed(), input=InputSpec(kind="features", shape=(16,), classes=4))
