"""What a parameter costs under each layout: reducing its gradient, its optimizer step, and its memory.

Let w be the bytes of a device's part of the parameter, A the axes over which its gradient is partial, and Q
all axes on which the part is the same (A among them), q devices in all. The ways to keep it:

    replicated        gradient: all-reduce of w over A
    state sharded     gradient: reduce-scatter over A; new weights: all-gather over Q; the optimizer's state
                      is cut q times (ZeRO-1)
    fully sharded     weights, gradient and state are cut q times; weights are gathered in forward and
                      again in backward, gradients reduce-scattered (ZeRO-3)
    sharded in node   the same over the innermost level only; the rest of A is all-reduced (HSDP)

Reductions of small gradients are joined to buckets, and share their latency; weights are gathered one by one,
each for its own use. The optimizer moves weights, gradient and state once each in memory.

On a machine that was measured, the optimizer takes what it was timed to take, and the copies of gradients
into what is sent count.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from syncline.cluster.collectives import Collective, collective_s
from syncline.planning.axes import SearchAxes
from syncline.planning.calibration import MachineFigures
from syncline.planning.states import PARTIAL, States, axes_mask, local_fraction

Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.int64]
"""For each layout a set of axes, as a bit mask."""


class Keeping(StrEnum):
    """How the copies of a parameter are kept."""

    REPLICATED = "replicated"
    STATE_SHARDED = "state sharded"
    SHARDED = "fully sharded"
    SHARDED_IN_NODE = "sharded in node"


KEEPINGS = tuple(Keeping)
BUCKET_BYTES = 25e6
"""Gradients are reduced about so many bytes at a time."""


@dataclass(frozen=True, slots=True)
class ParameterCosts:
    """By layout (rows) and way of keeping (columns, in the order of `KEEPINGS`)."""

    forward_gather_s: Floats
    backward_reduce_s: Floats
    """Gradients, and weights gathered again."""
    waited_s: Floats
    """Copying, and weights sent after the update: nothing can hide it."""
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


@dataclass(frozen=True, slots=True)
class _Prices:
    """What the costs of one parameter depend on besides its layout."""

    axes: SearchAxes
    state_factor: float
    machine: MachineFigures | None

    def reduce_s(self, kind: Collective, masks: Masks, nbytes: Floats) -> Floats:
        """Of gradients, in buckets, over the set of axes of each layout."""
        return self._collective_s(kind, masks, nbytes, BUCKET_BYTES)

    def gather_s(self, masks: Masks, nbytes: Floats) -> Floats:
        """Of weights, by themselves, over the set of axes of each layout."""
        return self._collective_s("all_gather", masks, nbytes, 0.0)

    def _collective_s(self, kind: Collective, masks: Masks, nbytes: Floats, bucket_bytes: float) -> Floats:
        seconds = np.zeros(len(masks))
        for mask in np.unique(masks):
            if mask:
                rows, spans = masks == mask, self.axes.spans(int(mask))
                seconds[rows] = collective_s(
                    self.axes.cluster, kind, spans, nbytes[rows], bucket_bytes=bucket_bytes
                )
        return seconds

    def optimizer_s(self, own: Floats) -> Floats:
        """The step of `own` bytes of parameters."""
        if self.machine is not None:
            return self.machine.optimizer_s_per_tensor + self.machine.optimizer_s_per_byte * own
        return own * (3.0 + 2.0 * self.state_factor) / self.axes.cluster.device.memory_bytes_per_s

    def copy_s(self, nbytes: Floats) -> Floats:
        """Copying within a device's memory."""
        return 2 * nbytes / self.axes.cluster.device.memory_bytes_per_s if self.machine else 0 * nbytes


def parameter_costs(
    axes: SearchAxes,
    nbytes: int,
    states: States,
    *,
    state_factor: float,
    machine: MachineFigures | None = None,
) -> ParameterCosts:
    """The costs of a parameter that needs a gradient.

    Args:
        axes: The axes of the search.
        nbytes: Of the whole parameter.
        states: Its layouts, as an input of its op.
        state_factor: Bytes of optimizer state for each byte of the parameter.
        machine: What was measured in place of estimates.
    """
    part = nbytes * local_fraction(axes, states)
    partial = axes_mask(states, states == PARTIAL)
    copies = axes_mask(states, states < 0)
    inner = _innermost(axes)
    prices = _Prices(axes, state_factor, machine)
    columns = [
        _replicated(prices, part, partial),
        _state_sharded(prices, part, partial, copies),
        _sharded(prices, part, partial, copies),
        _sharded(prices, part, partial, copies & inner),
    ]
    return ParameterCosts(
        *(np.stack([column[index] for column in columns], axis=1) for index in range(len(columns[0])))
    )


def frozen_costs(axes: SearchAxes, nbytes: int, states: States) -> ParameterCosts:
    """The costs of a parameter that is not trained: its memory."""
    part = nbytes * local_fraction(axes, states)
    none = np.zeros((len(states), len(KEEPINGS)))
    weights = np.repeat(part[:, None], len(KEEPINGS), axis=1)
    return ParameterCosts(none, none, none, none, weights, none, none, none)


def _replicated(prices: _Prices, part: Floats, partial: Masks) -> tuple[Floats, ...]:
    none = np.zeros(len(part))
    reduce_s = prices.reduce_s("all_reduce", partial, part)
    copied_s = np.where(partial > 0, prices.copy_s(part), 0.0)
    state = part * prices.state_factor
    return none, reduce_s, copied_s, prices.optimizer_s(part), part, part, state, none


def _state_sharded(prices: _Prices, part: Floats, partial: Masks, copies: Masks) -> tuple[Floats, ...]:
    count = _members(prices.axes, copies)
    reduce_s = prices.reduce_s("reduce_scatter", partial, part)
    gather_s = prices.gather_s(copies, part)
    copied_s = np.where(partial > 0, prices.copy_s(part), 0.0)
    state = part * prices.state_factor / count
    none = np.zeros(len(part))
    # New weights are sent after the update, when there is no backward left to hide behind.
    waited_s = copied_s + gather_s
    return none, reduce_s, waited_s, prices.optimizer_s(part / count), part, part, state, none


def _sharded(prices: _Prices, part: Floats, partial: Masks, cut: Masks) -> tuple[Floats, ...]:
    count = _members(prices.axes, cut)
    own = part / count
    gather_s = prices.gather_s(cut, part)
    reduce_s = prices.reduce_s("reduce_scatter", partial & cut, part)
    rest_s = prices.reduce_s("all_reduce", partial & ~cut, own)
    copied_s = np.where(partial & cut > 0, prices.copy_s(part), 0.0)
    gathered = np.where(count > 1, part, 0.0)
    state = own * prices.state_factor
    backward_s = gather_s + reduce_s + rest_s
    return gather_s, backward_s, copied_s, prices.optimizer_s(own), own, own, state, gathered


def _innermost(axes: SearchAxes) -> int:
    return sum(1 << index for index, axis in enumerate(axes.axes) if axis.level == 0)


def _members(axes: SearchAxes, masks: Masks) -> Floats:
    return np.array([axes.members(int(mask)) for mask in masks], dtype=np.float64)
