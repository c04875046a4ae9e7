"""The model of the runs that tests start as processes of their own; files in the current folder change it."""

import os
import signal
import time
from pathlib import Path

from torch import nn

from syncline import InputSpec, Workload
from syncline.cluster.rank import current_rank

print("a word on import")


class Net(nn.Module):
    """Has what is easily lost on the way to a file: running statistics, a weight with two names, chance."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.chance = nn.Dropout(0.2)
        self.head = nn.Linear(8, 4)
        self.steps = 0

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            obey_files(self.steps)
        return self.head(self.chance(self.second(self.first(self.norm(inputs)).relu())))


def obey_files(step):
    """`pace`: seconds a step. `raise` and `die`: the step at which rank 1 fails, `die` only once.

    `pid-N` tells a rank's process, `steps-N` has a line for each step that it made.
    """
    rank = current_rank().index
    if step == 1:
        Path(f"pid-{rank}").write_text(str(os.getpid()))
    with Path(f"steps-{rank}").open("a") as file:
        print(step, file=file)
    if Path("pace").exists():
        time.sleep(float(Path("pace").read_text()))
    if rank != 1:
        return
    if Path("raise").exists() and step == int(Path("raise").read_text()):
        raise KeyError("a bug in forward")
    if Path("die").exists() and step == int(Path("die").read_text()):
        Path("die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def net():
    print("a word from the model")
    return Workload(model=Net(), input=InputSpec(kind="features", shape=(8,), classes=4))
