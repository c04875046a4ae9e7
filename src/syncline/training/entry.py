"""What a started rank is called with. The launcher imports this and not the training: it starts sooner."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from syncline.training.run_folder import read_config

ENTRY = "syncline.training.entry:run_rank"


def rank_argument(folder: Path, *, resume: bool) -> str:
    """What `run_rank` is started with."""
    return json.dumps({"folder": str(folder.absolute()), "resume": resume})


def run_rank(argument: str) -> None:
    """The entry of a started rank: train the run of a folder."""
    from syncline.training.rank import train_rank

    # Standard output belongs to the command's result; what a model prints goes where progress goes.
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(argument)
    folder = Path(order["folder"])
    train_rank(read_config(folder), folder, resume=order["resume"])
