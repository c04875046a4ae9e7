"""What a plan is predicted to cost: seconds of a step by cause, and bytes of a device by kind."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one step on one device."""

    compute_s: float = 0.0
    """Forward and backward."""
    recompute_s: float = 0.0
    """Forward again, of the blocks whose activations are not kept."""
    redistribute_s: float = 0.0
    """Tensors whose producer and consumer lie differently on the mesh, both directions."""
    exchange_s: float = 0.0
    """Inside ops whose split dim needs it."""
    parameters_s: float = 0.0
    """Gradient reductions and weight gathering, before overlap."""
    hidden_s: float = 0.0
    """The part of `parameters_s` that is expected to hide behind compute."""
    optimizer_s: float = 0.0
    bubble_s: float = 0.0
    """In which a device of a pipeline waits for other stages."""

    @property
    def exposed_comm_s(self) -> float:
        """Communication that compute waits for."""
        return self.redistribute_s + self.exchange_s + self.parameters_s - self.hidden_s

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.recompute_s + self.exposed_comm_s + self.optimizer_s + self.bubble_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one device at the peak of a step."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer_state: float = 0.0
    saved_activations: float = 0.0
    gather_buffers: float = 0.0
    """Whole copies of sharded weights, and one block's activations while they are recomputed."""
    workspace: float = 0.0
    """Of a measured machine: what a step takes for a moment, and what its process takes before any model."""

    @property
    def total(self) -> float:
        """All kinds together."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def largest(self) -> str:
        """The kind that takes most."""
        return max((field.name for field in fields(self)), key=lambda name: getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Time and memory of a plan."""

    times: Times
    memory: Memory
    sent_bytes: float | None = None
    """What the device that sends most sends in a step, where that is counted."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.times.step_s
