"""What a parameter costs under each layout: reducing its gradient, its optimizer step, and its memory.

Let w be the bytes of a device's part of the parameter, A the axes over which its gradient is partial, and Q
all axes on which the part is the same (A among them), q devices in all. The ways to keep it:

    replicated        gradient: all-reduce of w over A
    state sharded     gradient: reduce-scatter over A; new weights: all-gather over Q; the optimizer's state
                      is cut q times (ZeRO-1)
    fully sharded     weights, gradient and state are cut q times; weights are gathered in forward and
                      again in backward, gradients reduce-scattered (ZeRO-3)
    sharded in node   the same over the innermost level only; the rest of A is all-reduced (HSDP)

The optimizer moves weights, gradient and state once each in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from syncline.cluster.collectives import Collective, collective_s
from syncline.planning.axes import SearchAxes
from syncline.planning.states import PARTIAL, States, axes_mask, local_fraction

Floats = npt.NDArray[np.float64]


class Keeping(StrEnum):
    """How the copies of a parameter are kept."""

    REPLICATED = "replicated"
    STATE_SHARDED = "state sharded"
    SHARDED = "fully sharded"
    SHARDED_IN_NODE = "sharded in node"


KEEPINGS = tuple(Keeping)


@dataclass(frozen=True, slots=True)
class ParameterCosts:
    """By layout (rows) and way of keeping (columns, in the order of `KEEPINGS`)."""

    forward_gather_s: Floats
    backward_reduce_s: Floats
    """Gradients, and weights gathered again."""
    optimizer_s: Floats
    weight_bytes: Floats
    gradient_bytes: Floats
    state_bytes: Floats
    gathered_bytes: Floats
    """A whole copy of the part, held only while it is used."""

    def __add__(self, other: ParameterCosts) -> ParameterCosts:
        """Two parameters kept the same way."""
        return ParameterCosts(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    @property
    def kept_bytes(self) -> Floats:
        """Weights, gradients and optimizer state together."""
        return self.weight_bytes + self.gradient_bytes + self.state_bytes


def parameter_costs(axes: SearchAxes, nbytes: int, states: States, *, state_factor: float) -> ParameterCosts:
    """The costs of a parameter that needs a gradient.

    Args:
        axes: The axes of the search.
        nbytes: Of the whole parameter.
        states: Its layouts, as an input of its op.
        state_factor: Bytes of optimizer state for each byte of the parameter.
    """
    part = nbytes * local_fraction(axes, states)
    partial = axes_mask(states, states == PARTIAL)
    copies = axes_mask(states, states < 0)
    inner = _innermost(axes)
    columns = [
        _replicated(axes, part, partial, state_factor),
        _state_sharded(axes, part, partial, copies, state_factor),
        _sharded(axes, part, partial, copies, state_factor),
        _sharded(axes, part, partial, copies & inner, state_factor),
    ]
    return ParameterCosts(
        *(np.stack([column[index] for column in columns], axis=1) for index in range(len(columns[0])))
    )


def frozen_costs(axes: SearchAxes, nbytes: int, states: States) -> ParameterCosts:
    """The costs of a parameter that is not trained: its memory."""
    part = nbytes * local_fraction(axes, states)
    none = np.zeros((len(states), len(KEEPINGS)))
    return ParameterCosts(none, none, none, np.repeat(part[:, None], len(KEEPINGS), axis=1), none, none, none)


def _replicated(
    axes: SearchAxes, part: Floats, partial: npt.NDArray[np.int64], state_factor: float
) -> tuple[Floats, ...]:
    none = np.zeros(len(part))
    reduce_s = _collective(axes, "all_reduce", partial, part)
    return none, reduce_s, _optimizer_s(axes, part, state_factor), part, part, part * state_factor, none


def _state_sharded(
    axes: SearchAxes,
    part: Floats,
    partial: npt.NDArray[np.int64],
    copies: npt.NDArray[np.int64],
    state_factor: float,
) -> tuple[Floats, ...]:
    count = _members(axes, copies)
    reduce_s = _collective(axes, "reduce_scatter", partial, part) + _collective(
        axes, "all_gather", copies, part
    )
    optimizer_s = _optimizer_s(axes, part / count, state_factor)
    return np.zeros(len(part)), reduce_s, optimizer_s, part, part, part * state_factor / count, part * 0


def _sharded(
    axes: SearchAxes,
    part: Floats,
    partial: npt.NDArray[np.int64],
    cut: npt.NDArray[np.int64],
    state_factor: float,
) -> tuple[Floats, ...]:
    count = _members(axes, cut)
    gather_s = _collective(axes, "all_gather", cut, part)
    reduce_s = _collective(axes, "reduce_scatter", partial & cut, part)
    rest_s = _collective(axes, "all_reduce", partial & ~cut, part / count)
    own = part / count
    return (
        gather_s,
        gather_s + reduce_s + rest_s,
        _optimizer_s(axes, own, state_factor),
        own,
        own,
        own * state_factor,
        np.where(count > 1, part, 0.0),
    )


def _optimizer_s(axes: SearchAxes, own: Floats, state_factor: float) -> Floats:
    moved = own * (3.0 + 2.0 * state_factor)
    return moved / axes.cluster.device.memory_bytes_per_s


def _innermost(axes: SearchAxes) -> int:
    return sum(1 << index for index, axis in enumerate(axes.axes) if axis.level == 0)


def _members(axes: SearchAxes, masks: npt.NDArray[np.int64]) -> Floats:
    return np.array([axes.members(int(mask)) for mask in masks], dtype=np.float64)


def _collective(axes: SearchAxes, kind: Collective, masks: npt.NDArray[np.int64], nbytes: Floats) -> Floats:
    seconds = np.zeros(len(masks))
    for mask in np.unique(masks):
        if mask:
            rows = masks == mask
            seconds[rows] = collective_s(axes.cluster, kind, axes.spans(int(mask)), nbytes[rows])
    return seconds
