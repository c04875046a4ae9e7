"""What was measured on a machine, in place of what the cost model estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from syncline.planning.op_calls import OpCall


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSeconds:
    """How long one op takes on one device while all devices of its machine work."""

    forward_s: float
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperFigures:
    """What torch's ways to train in parallel take besides computing and sending."""

    data_s_per_step: float = 0.0
    """DDP."""
    sharded_s_per_group: float = 0.0
    """FSDP2, for each group of weights that is gathered at once: forward and backward."""
    sharded_s_per_tensor: float = 0.0
    """The optimizer's step on sharded parameters."""
    zero1_s_per_tensor: float = 0.0
    """The step of a `ZeroRedundancyOptimizer`, which broadcasts each tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFigures:
    """What a machine's ranks were measured to do besides ops and collectives."""

    dispatch: OpSeconds
    """The least that any op takes: calling it, and its node of the backward pass."""
    overlap: float
    """Of communication that runs beside compute, the share that is hidden: 0 where both need the same
    cores, 1 where they do not disturb each other."""
    optimizer_s_per_tensor: float
    """The optimizer's step."""
    optimizer_s_per_byte: float
    """The same for each byte of the parameters that it updates."""
    gathers_beside_compute: bool
    """Whether FSDP2 gathers weights while the device computes: on accelerators it does, CPU ranks wait."""
    process_bytes: float
    """What training a model of a few weights takes: buffers of libraries, threads, the step's own code."""
    capture_bytes: float = 0.0
    """What capturing a model takes besides, as the strategies that run plans do."""
    wrappers: WrapperFigures = field(default_factory=WrapperFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The timings of ops by `OpCall.key`, and the machine's other figures."""

    machine: MachineFigures
    ops: Mapping[str, OpSeconds] = field(default_factory=dict)
    in_a_row: OpSeconds = field(default_factory=lambda: OpSeconds(forward_s=1.0, backward_s=1.0))
    """How many times as long as by themselves ops take in a step, one after the other: they find caches cold
    and fetch memory that was given back."""
    scale: float = 1.0
    """Of the estimates of ops without a timing: the median of measured over estimated."""

    def seconds(self, call: OpCall) -> OpSeconds | None:
        """What a call takes in a step, if it was timed."""
        alone = self.ops.get(call.key)
        if alone is None:
            return None
        return OpSeconds(
            forward_s=alone.forward_s * self.in_a_row.forward_s,
            backward_s=alone.backward_s * self.in_a_row.backward_s,
        )
