"""Timing work that all ranks do at once: what a rank gets while the others are as busy as it is.

Every function here is collective: all ranks of the default process group must call it together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

Announce = Callable[[str, int, int], None]
"""Called with what comes next, how many parts are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long one figure may take."""

    rounds: int = 3
    """How often all points are timed, one after the other; the best round of each counts."""
    budget_s: float = 0.08
    """Time for one point in one round."""
    min_repeats: int = 5
    max_repeats: int = 100
    long_s: float = 0.25
    """What takes longer is timed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Something to time."""

    label: str
    build: Callable[[], Callable[[], object]]
    """Makes the buffers and returns the work to time."""
    sustained: bool = False
    """Whether the mean counts and not the median: where ranks outnumber cores, a short computation is
    interrupted seldom, and the median would not see that another rank has the core half of the time."""


def slowest(value: float) -> float:
    """The largest value of all ranks."""
    shared = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared)


def time_points(points: Sequence[Point], device: torch.device, pace: Pace, announce: Announce) -> list[float]:
    """Seconds of each point: the median (or mean) of its repetitions, on the slowest rank, in its best round.

    The median ignores single slow repetitions. The rounds are far enough apart that a burst of other work
    on the machine spoils one of them and not the figure.
    """
    best = [float("inf")] * len(points)
    long: set[int] = set()
    for index in range(pace.rounds):
        for place, point in enumerate(points):
            announce(point.label, index * len(points) + place, pace.rounds * len(points))
            if place not in long:
                timed = _time_point(point, device, pace)
                best[place] = min(best[place], timed.seconds)
                if timed.is_long:
                    long.add(place)
    return best


@dataclass(frozen=True, slots=True)
class _Timed:
    seconds: float
    is_long: bool
    """Whether one repetition takes so long that nothing short can spoil it, and more would only cost time."""


def _time_point(point: Point, device: torch.device, pace: Pace) -> _Timed:
    work = point.build()
    # On an accelerator several calls are queued for each wait, so that the wait is not what is timed.
    calls = 1 if device.type == "cpu" else 10
    _timed_s(work, device, calls)
    estimate_s = slowest(_timed_s(work, device, calls))
    if estimate_s > pace.long_s:
        return _Timed(estimate_s / calls, True)
    repeats = max(pace.min_repeats, min(pace.max_repeats, int(pace.budget_s / estimate_s)))
    dist.barrier()
    times = [_timed_s(work, device, calls) for _ in range(repeats)]
    middle_s = statistics.fmean(times) if point.sustained else statistics.median(times)
    return _Timed(slowest(middle_s) / calls, False)


def _timed_s(work: Callable[[], object], device: torch.device, calls: int) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        work()
    _wait(device)
    return max(time.perf_counter() - start, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
