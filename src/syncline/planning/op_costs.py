"""What one op costs on one device, under each of its shardings.

With n_d the local size of dim d (full size / parts):

    compute   max(FLOP / device FLOP/s, bytes / memory bytes/s) + LAUNCH_S, forward and backward each
    exchange  what the shards of a `collective` dim send inside the op (softmax, norms, losses)

FLOP and bytes come from the op's iteration space at its local sizes; backward moves twice the bytes of
forward, since it reads what forward did and the gradient, and writes a gradient for each input.

Where an op was timed at its local sizes, its timing counts instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline.cluster.collectives import collective_s
from syncline.graph.opgraph import Op, OpGraph
from syncline.graph.space import Dim, DimKind, Exchange, IterationSpace, Operand, Volume
from syncline.planning.axes import SearchAxes
from syncline.planning.calibration import Calibration
from syncline.planning.choices import Assignments, parts_of
from syncline.planning.op_calls import op_call

Floats = npt.NDArray[np.float64]

LAUNCH_S = 4e-6
"""Starting one kernel, and as long again for its backward."""


@dataclass(frozen=True, slots=True)
class OpCosts:
    """Seconds by sharding."""

    forward_s: Floats
    backward_s: Floats
    forward_exchange_s: Floats
    backward_exchange_s: Floats
    measured: npt.NDArray[np.bool_]
    """Whether compute was timed."""


def op_costs(
    graph: OpGraph,
    op: Op,
    axes: SearchAxes,
    assignments: Assignments,
    calibration: Calibration | None = None,
) -> OpCosts:
    """Compute and inner exchanges of an op under each sharding."""
    sizes = local_sizes(op.space, axes, assignments)
    needs_gradient = [graph.tensors[tensor].requires_grad for tensor in op.inputs]
    forward_s, backward_s = _compute_s(graph, op, axes, sizes, needs_gradient)
    measured = np.zeros(len(sizes), dtype=bool)
    if calibration is not None:
        forward_s, backward_s, measured = _calibrated(graph, op, sizes, (forward_s, backward_s), calibration)
    forward_exchange_s, backward_exchange_s = np.zeros(len(sizes)), np.zeros(len(sizes))
    floating = (graph.tensors[tensor].dtype for tensor in op.inputs)
    element_bytes = max((dtype.itemsize for dtype in floating if dtype.is_floating_point), default=4)
    for index, dim in enumerate(op.space.dims):
        if dim.kind is not DimKind.COLLECTIVE or dim.exchange is None:
            continue
        mask = _axes_of(assignments, index)
        forward_exchange_s += _exchange_s(axes, dim, mask, sizes, element_bytes, backward=False)
        if any(needs_gradient):
            backward_exchange_s += _exchange_s(axes, dim, mask, sizes, element_bytes, backward=True)
    return OpCosts(forward_s, backward_s, forward_exchange_s, backward_exchange_s, measured)


def local_sizes(space: IterationSpace, axes: SearchAxes, assignments: Assignments) -> Floats:
    """The size of each iteration dim (columns) on one device under each sharding (rows)."""
    return np.array(space.sizes, dtype=np.float64) / parts_of(space, axes, assignments)


def operand_elements(operand: Operand, sizes: Floats) -> Floats:
    """How many elements of a tensor one device has, given the local sizes under each sharding."""
    dims = [dim for factors in operand.dims for dim in factors]
    return sizes[:, dims].prod(axis=1) if dims else np.ones(len(sizes))


def _compute_s(
    graph: OpGraph, op: Op, axes: SearchAxes, sizes: Floats, needs_gradient: list[bool]
) -> tuple[Floats, Floats]:
    if op.is_view:
        return np.zeros(len(sizes)), np.zeros(len(sizes))
    device = axes.cluster.device
    tensors = [graph.tensors[tensor] for tensor in (*op.inputs, *op.outputs)]
    moved = np.zeros(len(sizes))
    for tensor, operand in zip(tensors, (*op.space.inputs, *op.space.outputs), strict=True):
        moved += operand_elements(operand, sizes) * tensor.dtype.itemsize
    flops = np.zeros(len(sizes))
    backward_flops = np.zeros(len(sizes))
    for term in op.space.flop_terms:
        each = 2.0 * sizes[:, list(term.dims)].prod(axis=1)
        wanted = sum(any(needs_gradient[place] for place in factor) for factor in term.factors)
        flops += each
        backward_flops += wanted * each
    rate = device.matmul_flops_per_s(max(tensor.dtype.itemsize for tensor in tensors[-len(op.outputs) :]))
    forward_s = np.maximum(flops / rate, moved / device.memory_bytes_per_s) + LAUNCH_S
    if not any(needs_gradient):
        return forward_s, np.zeros(len(sizes))
    return forward_s, np.maximum(backward_flops / rate, 2 * moved / device.memory_bytes_per_s) + LAUNCH_S


def _calibrated(
    graph: OpGraph, op: Op, sizes: Floats, estimate: tuple[Floats, Floats], calibration: Calibration
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Timings where there are some; elsewhere the estimate, scaled, and at least what any op takes."""
    least = calibration.machine.dispatch
    forward_s = np.maximum(estimate[0] * calibration.scale, least.forward_s)
    needs_backward = any(graph.tensors[tensor].requires_grad for tensor in op.inputs)
    backward_s = np.maximum(estimate[1] * calibration.scale, least.backward_s if needs_backward else 0.0)
    measured = np.full(len(sizes), op.is_view)
    if op.is_view or not op.inputs:
        return forward_s, backward_s, measured
    for row, local in enumerate(sizes):
        timed = calibration.seconds(op_call(graph, op, [math.ceil(size) for size in local]))
        if timed is not None:
            forward_s[row], backward_s[row], measured[row] = timed.forward_s, timed.backward_s, True
    return forward_s, backward_s, measured


def _axes_of(assignments: Assignments, dim: int) -> npt.NDArray[np.int64]:
    return ((assignments == dim) * (1 << np.arange(assignments.shape[1]))).sum(axis=1)


def _exchange_s(
    axes: SearchAxes,
    dim: Dim,
    masks: npt.NDArray[np.int64],
    sizes: Floats,
    element_bytes: int,
    *,
    backward: bool,
) -> Floats:
    exchange = dim.exchange
    seconds = np.zeros(len(sizes))
    if exchange is None:
        return seconds
    elements, rounds = _volumes(exchange, sizes, backward=backward)
    for mask in np.unique(masks):
        if mask:
            rows = masks == mask
            each = elements[rows] * element_bytes / np.maximum(rounds[rows], 1.0)
            if exchange.collective == "all_gather":
                each = each * axes.members(int(mask))
            spans = axes.spans(int(mask))
            seconds[rows] = rounds[rows] * collective_s(axes.cluster, exchange.collective, spans, each)
    return seconds


def _volumes(exchange: Exchange, sizes: Floats, *, backward: bool) -> tuple[Floats, Floats]:
    volume = exchange.backward if backward else exchange.forward
    rounds = exchange.backward_rounds if backward else exchange.forward_rounds
    return _count(volume, sizes), _count(rounds, sizes)


def _count(volume: Volume, sizes: Floats) -> Floats:
    return volume.factor * (sizes[:, list(volume.dims)].prod(axis=1) if volume.dims else np.ones(len(sizes)))
