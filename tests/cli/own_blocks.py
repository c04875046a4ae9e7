"""A model of several layers for runs in stages; each rank that builds it tells its process in `pid-N`."""

import os
from pathlib import Path

from torch import nn

from syncline import InputSpec, Workload
from syncline.cluster.rank import current_rank


def net():
    Path(f"pid-{current_rank().index}").write_text(str(os.getpid()))
    layers = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(5)]
    model = nn.Sequential(*layers, nn.Linear(8, 4))
    return Workload(model=model, input=InputSpec(kind="features", shape=(8,), classes=4))
