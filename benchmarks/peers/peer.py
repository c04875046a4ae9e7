"""What it takes to be a peer: a framework in one of its ways, what it needs, and how it makes a step."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from syncline.launch.local import launch_local
from syncline.workloads.workload import Batch

ENTRY = "peer_rank:run"
LossFunction = Callable[[nn.Module, Batch], Tensor]
Launch = Callable[[str, int, Path], None]
"""Runs `ENTRY` with an argument on so many ranks, with their logs in a folder; raises `SynclineError`."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be trained, the same for all."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    """Of the model's parameters. Its groups are the ones whose learning rate follows the schedule."""
    compute_loss: LossFunction
    rank_batch: int
    """Rows of a batch on one rank."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Trainer:
    """A task in the hands of a framework."""

    train: Callable[[Batch], Tensor]
    """One step; the mean loss of the rows that it was given."""
    evaluate: Callable[[Batch], Tensor]
    """The mean loss of rows, without learning from them."""
    close: Callable[[], None] = _nothing
    """Ends what the framework has started."""
    takes_whole_batch: bool = False
    """Every rank is given all rows of a batch, not only a share of its own."""


def launch_here(argument: str, ranks: int, logs: Path) -> None:
    """As Syncline's own ranks are started."""
    launch_local(ENTRY, argument, ranks=ranks, logs=logs)


def _any_model(model: nn.Module) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A framework in one of its ways."""

    name: str
    framework: str
    package: str
    """What must be importable."""
    setup: Callable[[Task], Trainer] | None
    """None for what cannot run here, as `blocked` says."""
    kin: str = "data"
    """Syncline's strategy of the same kind."""
    blocked: str | None = None
    """Why it is not run, installed or not."""
    refusal: Callable[[nn.Module], str | None] = _any_model
    """Why it cannot train a model; None when it can."""
    launch: Launch = launch_here

    @property
    def full_name(self) -> str:
        """As `--only` takes it."""
        return f"{self.framework}:{self.name}"

    def missing(self) -> str | None:
        """Why it cannot run here."""
        if self.blocked is not None:
            return self.blocked
        try:
            importlib.import_module(self.package)
        except Exception as error:
            # Anything may go wrong in a foreign import; what matters is to say what.
            told = (str(error).splitlines() or ["no reason given"])[0]
            return f"{self.package} cannot be imported: {type(error).__name__}: {told}"
        return None


def plain_loop(
    task: Task,
    model: Any,
    optimizer: Any,
    *,
    backward: Callable[[Tensor], Any] = torch.Tensor.backward,
    clear: Callable[[], Any] | None = None,
) -> Trainer:
    """Forward, backward, step and clearing of gradients, with what a framework has wrapped."""

    def train(batch: Batch) -> Tensor:
        loss = task.compute_loss(model, batch)
        backward(loss)
        optimizer.step()
        if clear is None:
            optimizer.zero_grad(set_to_none=True)
        else:
            clear()
        return loss.detach()

    return Trainer(train, plain_evaluation(task, model))


def plain_evaluation(task: Task, model: nn.Module) -> Callable[[Batch], Tensor]:
    """The loss of a model that is called as any other."""

    def evaluate(batch: Batch) -> Tensor:
        with evaluating(model):
            return task.compute_loss(model, batch).detach()

    return evaluate


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the model evaluates."""
    model.eval()
    with torch.no_grad():
        yield
    model.train()
