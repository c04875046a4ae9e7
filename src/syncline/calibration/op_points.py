"""What is timed of an op: its forward call, and its backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from syncline.cluster.timing import Point
from syncline.graph.local import run_local
from syncline.planning.op_calls import CallInput, OpCall


def forward_point(call: OpCall, device: torch.device, *, sustained: bool) -> Point:
    """The forward call, recording for backward as training does."""

    def build() -> Callable[[], object]:
        inputs = [_make(one, device) for one in call.inputs]
        return lambda: run_local(call.local, inputs)

    return Point(label=call.name, build=build, sustained=sustained)


def backward_point(call: OpCall, device: torch.device, *, sustained: bool) -> Point:
    """The backward pass alone, with what it takes to start one."""

    def build() -> Callable[[], object]:
        inputs = [_make(one, device) for one in call.inputs]
        outputs = [one for one in run_local(call.local, inputs) if one.requires_grad]
        return _gradients(outputs, [one for one in inputs if one.requires_grad])

    return Point(label=f"{call.name}, backward", build=build, sustained=sustained)


def view_point(device: torch.device, *, views: int, backward: bool) -> Point:
    """Ops that compute nothing, one after the other: what it takes to call an op at all."""

    def build() -> Callable[[], object]:
        start = torch.zeros(2, 2, device=device, requires_grad=True)
        return _gradients([_views(start, views)], [start]) if backward else lambda: _views(start, views)

    return Point(label="dispatch", build=build)


def _gradients(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], object]:
    given = [torch.rand_like(one) for one in outputs]
    if not outputs:
        return lambda: None
    return lambda: torch.autograd.grad(outputs, inputs, given, retain_graph=True, allow_unused=True)


def _views(start: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        start = start.transpose(0, 1)
    return start


def _make(one: CallInput, device: torch.device) -> torch.Tensor:
    """Values that are no special case for any op: neither zeros nor very large."""
    if one.dtype.is_floating_point:
        return torch.rand(one.shape, device=device).to(one.dtype).requires_grad_(one.needs_gradient)
    if one.dtype == torch.bool:
        return torch.ones(one.shape, dtype=torch.bool, device=device)
    return torch.randint(one.upper, one.shape, device=device).to(one.dtype)
