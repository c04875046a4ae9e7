"""What is timed of an op: its forward call, and its backward pass."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

from syncline.cluster.timing import Point
from syncline.graph.local import run_local
from syncline.planning.op_calls import CallInput, OpCall

_CACHE_BYTES = 64 << 20
"""More than the caches of a CPU hold: in training, what an op takes was last used long ago."""
_MOST_SETS = 12


def can_run(call: OpCall, device: torch.device) -> bool:
    """Whether an op runs on a shard by itself: some need what other shards have to be of the right shape."""
    try:
        run_local(call.local, _make_all(call, device))
    except RuntimeError:
        return False
    return True


def forward_point(call: OpCall, device: torch.device, *, sustained: bool) -> Point:
    """The forward call, recording for backward as training does, into memory that is not in use."""

    def build() -> Callable[[], object]:
        sets = itertools.cycle([_make_all(call, device) for _ in range(_sets(call))])
        kept: deque[object] = deque(maxlen=_sets(call))
        return lambda: kept.append(run_local(call.local, next(sets)))

    return Point(label=call.name, build=build, sustained=sustained)


def backward_point(call: OpCall, device: torch.device, *, sustained: bool) -> Point:
    """The backward pass alone, with what it takes to start one."""

    def build() -> Callable[[], object]:
        passes = itertools.cycle([_backward(call, device) for _ in range(_sets(call))])
        return lambda: next(passes)()

    return Point(label=f"{call.name}, backward", build=build, sustained=sustained)


def _sets(call: OpCall) -> int:
    """How many sets of tensors take turns, so that none is in a cache."""
    return max(1, min(_MOST_SETS, _CACHE_BYTES // max(1, sum(one.bytes for one in call.inputs))))


def _make_all(call: OpCall, device: torch.device) -> list[torch.Tensor]:
    return [_make(one, device) for one in call.inputs]


def _backward(call: OpCall, device: torch.device) -> Callable[[], object]:
    inputs = _make_all(call, device)
    outputs = [one for one in run_local(call.local, inputs) if one.requires_grad]
    return _gradients(outputs, [one for one in inputs if one.requires_grad])


class Row:
    """Ops one after the other, as in a step: all forward, keeping what backward needs, then all backward."""

    def __init__(self, calls: Sequence[OpCall], device: torch.device) -> None:
        self._calls = [(call, _make_all(call, device)) for call in calls]

    def run(self) -> tuple[float, float]:
        """Seconds of forward and of backward."""
        began = time.perf_counter()
        passes = [self._forward(call, inputs) for call, inputs in self._calls]
        between = time.perf_counter()
        while passes:
            passes.pop()()
        return between - began, time.perf_counter() - between

    def _forward(self, call: OpCall, inputs: Sequence[torch.Tensor]) -> Callable[[], object]:
        outputs = [one for one in run_local(call.local, inputs) if one.requires_grad]
        wanted = [one for one in inputs if one.requires_grad]
        if not outputs:
            return lambda: None
        return lambda: torch.autograd.grad(
            outputs, wanted, [torch.ones_like(one) for one in outputs], allow_unused=True
        )


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
