"""What is timed of an op: its forward call, and its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from syncline.cluster.timing import Point
from syncline.graph.local import run_local
from syncline.planning.op_calls import CallInput, OpCall


def op_points(call: OpCall, device: torch.device, *, sustained: bool) -> list[Point]:
    """Forward, and backward if something needs a gradient."""
    points = [Point(label=call.name, build=lambda: _forward(call, device), sustained=sustained)]
    if call.has_backward:
        label = f"{call.name}, backward"
        points.append(Point(label=label, build=lambda: _backward(call, device), sustained=sustained))
    return points


def _forward(call: OpCall, device: torch.device) -> Callable[[], object]:
    inputs = [_make(one, device) for one in call.inputs]
    return lambda: run_local(call.local, inputs)


def _backward(call: OpCall, device: torch.device) -> Callable[[], object]:
    inputs = [_make(one, device) for one in call.inputs]
    outputs = [one for one in run_local(call.local, inputs) if one.requires_grad]
    wanted = [one for one in inputs if one.requires_grad]
    gradients = [torch.rand_like(one) for one in outputs]
    if not outputs:
        return lambda: None
    return lambda: torch.autograd.grad(outputs, wanted, gradients, retain_graph=True, allow_unused=True)


def _make(one: CallInput, device: torch.device) -> torch.Tensor:
    """Values that are no special case for any op: neither zeros nor very large."""
    if one.dtype.is_floating_point:
        return torch.rand(one.shape, device=device).to(one.dtype).requires_grad_(one.needs_gradient)
    if one.dtype == torch.bool:
        return torch.ones(one.shape, dtype=torch.bool, device=device)
    return torch.randint(one.upper, one.shape, device=device).to(one.dtype)
