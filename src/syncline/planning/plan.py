"""A plan as data: a sharding for every op, how parameters are kept, and what that is predicted to cost.

`plan.json` can be read and edited by people. What it means for a graph is checked when it meets one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from syncline.planning.parameter_costs import Keeping
from syncline.planning.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One mesh axis of a plan."""

    name: str
    size: int
    level: str
    """The cluster's level whose links it crosses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSharding:
    """How one op is split."""

    split: dict[str, tuple[str, ...]]
    """For each iteration dim that is split, the axes that split it."""
    keep: Keeping = Keeping.REPLICATED
    """How the op's own parameters are kept on the devices that have the same part of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to train the same model, priced by the same model."""

    name: str
    exact: bool
    prediction: Prediction | None
    fits: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """How the plan was found."""

    space: str
    """How many plans there are, as a power of ten."""
    seconds: float
    ops: int
    choices: int
    """Shardings of all ops together."""
    exposed_share: float
    """Of parameter communication, the share that backward does not hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkload:
    """What was planned for."""

    model: str
    batch: int
    parameters: int
    forward_flops: int
    optimizer_state_factor: float
    """Bytes of optimizer state for each byte of a parameter."""
    example: str = ""
    """The form of the global batch, as JSON such as `["int64[8, 64]", "int64[8]"]`, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A sharding for every op of a model on a cluster."""

    workload: PlannedWorkload
    cluster: str
    measured: bool
    """Whether the cluster's figures were measured; if not, seconds are estimates from data sheets."""
    timed_share: float = 0.0
    """Of the predicted compute, the share of ops that were timed at their shapes on these devices."""
    memory_limit_bytes: float
    axes: tuple[Axis, ...]
    ops: dict[str, OpSharding]
    tied: dict[str, Keeping] = field(default_factory=dict)
    """How parameters that several ops use are kept."""
    recompute: bool = False
    """Whether repeated blocks recompute their activations in backward."""
    prediction: Prediction
    search: SearchReport
    alternatives: tuple[Alternative, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: int = 1
