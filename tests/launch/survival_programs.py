"""Runs whose nodes are killed in the middle, by themselves, at a step that the test chooses."""

import json
import os
import signal
from pathlib import Path

import torch

from syncline.cluster.rank import current_rank
from syncline.training import loop as loop_module
from syncline.training.rank import run_rank


def train_and_die(argument: str) -> None:
    """Train the run of a folder; the ranks in `dies` kill themselves once, at their step.

    Each rank notes its weights after its last step, and a rank that comes back the step at which it joins.
    """
    order = json.loads(argument)
    folder, rank = Path(order["folder"]), current_rank()
    step_of_death = order["dies"].get(str(rank.index)) if not rank.restarts else None
    original = loop_module.Loop.train_once

    def train_once(loop: loop_module.Loop) -> None:
        if step_of_death is not None and loop.done >= step_of_death:
            os.kill(os.getpid(), signal.SIGKILL)
        first_time = not hasattr(loop, "seen")
        original(loop)
        loop.seen = True  # type: ignore[attr-defined]
        note = {"step": loop.done, "world_size": torch.distributed.get_world_size()}
        with (folder / f"steps-{rank.index}-{rank.restarts}.jsonl").open("a") as file:
            file.write(json.dumps(note | {"first": first_time}) + "\n")
        if loop.done == order["steps"]:
            weights = torch.cat([p.detach().flatten() for p in loop._parts.step.model.parameters()])
            torch.save(weights, folder / f"weights-{rank.index}.pt")

    loop_module.Loop.train_once = train_once  # type: ignore[method-assign]
    run_rank(json.dumps({"folder": str(folder), "resume": False}))
