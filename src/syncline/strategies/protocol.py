"""What a strategy is: it takes a job on one rank and gives back the step that trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline.cluster.rank import Rank
from syncline.planning.plan import Plan
from syncline.workloads.deferred.weights import DeferredWeight
from syncline.workloads.workload import Batch

LossFunction: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""Calls the model on a batch and gives the scalar mean loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step is made, whatever the strategy."""

    accumulate: int = 1
    """Micro-batches whose gradients are added up before the optimizer's step."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` runs forward and backward under autocast; weights stay in fp32."""
    clip_norm: float | None = None
    """Scale gradients down to this total norm."""
    activation_checkpointing: bool = False
    """Recompute the activations of each block in backward instead of keeping them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one rank is asked to train. The model is on `device`, the optimizer holds its parameters."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    compute_loss: LossFunction
    rank: Rank
    device: torch.device
    options: StepOptions = field(default_factory=StepOptions)
    example: Batch | None = None
    """A micro-batch of all ranks together, of which only shapes and types matter; for strategies that
    capture the model."""
    plan: Plan | None = None
    """How every op is split, where that is decided already."""
    cluster: str | None = None
    """What the ranks run on, where plans can know more than how many ranks a node has."""
    deferred: Mapping[str, DeferredWeight] = field(default_factory=dict)
    """By name, the parameters that are on the meta device: the strategy makes the parts that this rank needs.
    There are none unless the strategy `defers_weights`."""
    steps: int | None = None
    """How many steps the run has, when that is known."""


@runtime_checkable
class TrainStep(Protocol):
    """One rank's side of a training step, and the state that a checkpoint must hold."""

    model: nn.Module
    """What this rank holds of the model."""
    optimizer: torch.optim.Optimizer
    buffer_group: dist.ProcessGroup | None
    """The ranks that hold the same buffers as this one; None when all do."""
    loss_weight: float
    """How much this rank's losses count in the run's: 0 where only others have the model's own loss."""
    lead: int
    """How many steps after the next ranks may agree on a step's loss; 0 where steps wait for all anyway."""
    is_apart: bool
    """Whether ranks never wait for all others while they train, not even to save."""
    scopes: Sequence[str]
    """What may precede this rank's names in a checkpoint, the best first; several where weights differ."""
    notes: tuple[str, ...]
    """What to tell the user about how the step was made, a line each."""

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this rank's rows of a global batch, from any device; the rank's mean loss, detached.

        The run's loss is the mean of these over all ranks, by `loss_weight`.
        """
        ...

    def evaluate(self, batch: Batch) -> Tensor:
        """This rank's mean loss on its rows, without training."""
        ...

    def rows(self, global_batch: int) -> slice:
        """Which rows of each global batch this rank must be given."""
        ...

    @property
    def exposed_s(self) -> float | None:
        """Seconds in which this rank has stood still for other nodes; None where that is not counted."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state by parameter name, the same names under every exact strategy."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, perhaps under another strategy."""
        ...


class Together:
    """What steps have in common in which every rank has a loss of the model and waits for the others."""

    buffer_group: dist.ProcessGroup | None = None
    loss_weight: float = 1.0
    lead: int = 0
    is_apart: bool = False
    scopes: Sequence[str] = ("",)
    notes: tuple[str, ...] = ()

    @property
    def exposed_s(self) -> float | None:
        """Not counted."""
        return None


class Strategy(Protocol):
    """One way to train. A strategy is a frozen dataclass whose fields are its options."""

    name: ClassVar[str]
    exact: ClassVar[bool]
    """Whether it does the same mathematics as one device."""
    summary: ClassVar[str]

    def check(self, *, world_size: int, global_batch: int, accumulate: int) -> None:
        """Raise `StrategyError` when it cannot run so."""
        ...

    def setup(self, job: Job) -> TrainStep:
        """Make the step, inside an initialised process group."""
        ...


def defers_weights(strategy: Strategy) -> bool:
    """Whether a strategy makes only parts of large weights: it says so by a class variable of this name."""
    return getattr(strategy, "defers_weights", False)


def survives_node_loss(strategy: Strategy) -> bool:
    """Whether a run goes on without a node that is lost: a strategy that can has `on_node_loss`."""
    return getattr(strategy, "on_node_loss", "stop") == "continue"
