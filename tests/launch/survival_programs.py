"""Runs whose nodes are killed in the middle, by themselves, at a step that the test chooses."""

import json
import os
import signal
import time
from pathlib import Path

import torch

from syncline.cluster import membership
from syncline.cluster.rank import current_rank
from syncline.training import loop as loop_module
from syncline.training.entry import run_rank
from syncline.training.surviving_loop import SurvivingLoop


def train_and_die(argument: str) -> None:
    """Train the run of a folder; the ranks in `dies` send themselves a signal once, at their step.

    A node is missed after so many seconds of silence as `silence_s` says. With `waits`, the first rank stands
    still from the loss of a node until it asks to come back. Each rank notes the size of its group after each
    step, and its weights after the last.
    """
    order = json.loads(argument)
    folder, rank = Path(order["folder"]), current_rank()
    membership.DEAD_AFTER_S = membership.SILENT_AFTER_S = order["silence_s"]
    step_of_death = order["dies"].get(str(rank.index)) if not rank.restarts else None
    original = loop_module.Loop.train_once

    def train_once(loop: loop_module.Loop) -> None:
        if step_of_death is not None and loop.done >= step_of_death:
            os.kill(os.getpid(), signal.Signals[order["signal"]])
        if order["waits"] and rank.is_first:
            wait_for_newcomers(loop, rank.world_size)
        original(loop)
        note = {"step": loop.done, "world_size": torch.distributed.get_world_size()}
        with (folder / f"steps-{rank.index}-{rank.restarts}.jsonl").open("a") as file:
            file.write(json.dumps(note) + "\n")
        if loop.done == order["steps"]:
            weights = torch.cat([p.detach().flatten() for p in loop._parts.step.model.parameters()])
            torch.save(weights, folder / f"weights-{rank.index}.pt")

    loop_module.Loop.train_once = train_once  # type: ignore[method-assign]
    run_rank(json.dumps({"folder": str(folder), "resume": False}))


def wait_for_newcomers(loop: loop_module.Loop, world_size: int, timeout_s: float = 150) -> None:
    assert isinstance(loop, SurvivingLoop)
    end = time.monotonic() + timeout_s
    while torch.distributed.get_world_size() < world_size:
        if loop._survival.has_newcomers:
            return
        assert time.monotonic() < end, "no node came back"
        time.sleep(0.05)
