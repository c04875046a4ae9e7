"""What is timed besides ops: dispatch, the optimizer's step, and communication beside compute.

Every function here is collective: all ranks call it together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from syncline.calibration.op_points import view_point
from syncline.cluster.memory import MemoryMeter
from syncline.cluster.timing import Announce, Pace, Point, time_points
from syncline.graph.capture import capture
from syncline.planning.calibration import OpSeconds
from syncline.workloads.optimizers import make_adam

_MANY = 50
_BUCKETS = 4
_BUCKET_BYTES = 4 << 20
_PRODUCT_SIZE = 256
_SMALLER = 4
"""How much smaller the parameters of the second point of the optimizer's line are."""


@dataclass(frozen=True, slots=True)
class Timer:
    """How points are timed."""

    device: torch.device
    pace: Pace
    announce: Announce

    def time(self, *points: Point) -> list[float]:
        """Seconds of each point."""
        return time_points(points, self.device, self.pace, self.announce)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What it takes to call an op, and to start a backward pass."""

    op: OpSeconds
    start_backward_s: float


def time_dispatch(timer: Timer) -> Dispatch:
    """Views compute nothing: many of them give what one takes, and one what surrounds it."""
    forward_s, backward_s, one_s = timer.time(
        view_point(timer.device, views=_MANY, backward=False),
        view_point(timer.device, views=_MANY, backward=True),
        view_point(timer.device, views=1, backward=True),
    )
    op = OpSeconds(forward_s=forward_s / _MANY, backward_s=backward_s / _MANY)
    return Dispatch(op, max(0.0, one_s - op.backward_s))


def time_optimizer(
    timer: Timer, shapes: Sequence[tuple[int, ...]], state_factor: float
) -> tuple[float, float]:
    """Seconds for each tensor and for each byte that the optimizer updates.

    Args:
        timer: How to time.
        shapes: Of the parameters; equally many smaller ones give the second point of the line.
        state_factor: Bytes of state for each byte of a parameter: which says the kind of optimizer.
    """
    sizes = [math.prod(shape) for shape in shapes]
    smaller = [max(1, size // _SMALLER) for size in sizes]
    large_s, small_s = timer.time(
        *(
            Point(label="optimizer", build=lambda sizes=one: _optimizer(sizes, state_factor, timer.device))
            for one in (sizes, smaller)
        )
    )
    difference = 4 * (sum(sizes) - sum(smaller))
    s_per_byte = max(0.0, large_s - small_s) / difference if difference else 0.0
    s_per_tensor = max(0.0, large_s - 4 * sum(sizes) * s_per_byte) / max(1, len(sizes))
    return s_per_tensor, s_per_byte


def time_overlap(timer: Timer) -> float:
    """Of communication that runs beside compute, the share that is hidden.

    With R seconds of all-reduces, C ≈ R seconds of matrix products and T seconds of both at once it is
    (R + C − T) / min(R, C).
    """
    if dist.get_world_size() == 1:
        return 1.0
    # A difference of three times needs each of them to be good.
    timer = replace(timer, pace=Pace(rounds=3, budget_s=0.25, min_repeats=5))
    (product_s,) = timer.time(Point(label="overlap", build=lambda: _products(1, timer.device)))
    (reduce_s,) = timer.time(Point(label="overlap", build=lambda: _reductions(timer.device)))
    count = max(1, round(reduce_s / product_s))
    compute_s, both_s = timer.time(
        Point(label="overlap", build=lambda: _products(count, timer.device)),
        Point(label="overlap", build=lambda: _both(count, timer.device)),
    )
    return float(min(1.0, max(0.0, (reduce_s + compute_s - both_s) / min(reduce_s, compute_s))))


def find_capture_bytes(device: torch.device) -> float:
    """What capturing a model takes and keeps, as runs count it."""
    meter = MemoryMeter(device)
    meter.reset_peak()
    capture(torch.nn.Linear(8, 8, device="meta"), (torch.empty(4, 8, device="meta"),))
    return float(meter.peak_bytes() or 0) if device.type == "cpu" else 0.0


def find_process_bytes(device: torch.device) -> float:
    """The peak memory of training a model of a few weights, as runs count it."""
    meter = MemoryMeter(device)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(device),
        device_ids=None if device.type == "cpu" else [device.index],
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        torch.nn.functional.cross_entropy(
            model(torch.rand(4, 8, device=device)), torch.zeros(4, dtype=torch.long, device=device)
        ).backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(meter.peak_bytes() or 0)


def _optimizer(sizes: Sequence[int], state_factor: float, device: torch.device) -> Callable[[], object]:
    parameters = [torch.nn.Parameter(torch.rand(size, device=device)) for size in sizes]
    for one in parameters:
        one.grad = torch.rand_like(one)
    if state_factor > 1:
        return make_adam(parameters, lr=1e-6, weight_decay=0.01).step
    return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9 if state_factor else 0.0, weight_decay=1e-4).step


def _products(count: int, device: torch.device) -> Callable[[], object]:
    left, right = (torch.rand(_PRODUCT_SIZE, _PRODUCT_SIZE, device=device) for _ in range(2))
    out = torch.empty_like(left)

    def work() -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    return work


def _reductions(device: torch.device) -> Callable[[], object]:
    start = _start_reductions(device)

    def work() -> None:
        for one in start():
            one.wait()

    return work


def _both(count: int, device: torch.device) -> Callable[[], object]:
    start, compute = _start_reductions(device), _products(count, device)

    def work() -> None:
        running = start()
        compute()
        for one in running:
            one.wait()

    return work


def _start_reductions(device: torch.device) -> Callable[[], list[dist.Work]]:
    buckets = [torch.zeros(_BUCKET_BYTES // 4, device=device) for _ in range(_BUCKETS)]

    def start() -> list[dist.Work]:
        running = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
        return [one for one in running if one is not None]

    return start
