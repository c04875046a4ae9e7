"""What each rank of a measurement runs: it times what it is asked to, all ranks at once."""

from __future__ import annotations

import json
import pickle
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs
import torch

from syncline.calibration.machine_points import (
    Dispatch,
    Timer,
    find_capture_bytes,
    find_process_bytes,
    time_dispatch,
    time_optimizer,
    time_overlap,
)
from syncline.calibration.op_points import Row, backward_point, can_run, forward_point
from syncline.calibration.progress import show_progress
from syncline.calibration.wrapper_points import time_wrappers
from syncline.cluster.device import rank_device
from syncline.cluster.machine import core_count
from syncline.cluster.probe import ProbeSettings, probe_cluster
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank
from syncline.cluster.timing import Pace, Point, slowest
from syncline.planning.calibration import MachineFigures
from syncline.planning.op_calls import OpCall

ENTRY = f"{__name__}:run"
ROW_ROUNDS = 5
PACE = Pace(rounds=2, budget_s=0.08, min_repeats=3, max_repeats=50, long_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the ranks are asked to time."""

    calls: tuple[OpCall, ...]
    machine: bool
    """Whether devices, links and the machine's other figures are wanted."""
    row: tuple[OpCall, ...]
    """Ops of a step in its order."""
    parameter_shapes: tuple[tuple[int, ...], ...]
    """Of what the optimizer updates."""
    state_factor: float
    quick: bool = False
    """For figures of the right order only."""


def write_order(order: Order, folder: Path) -> str:
    """Put an order where the ranks find it; what they are started with."""
    (folder / "order.pickle").write_bytes(pickle.dumps(order))
    return json.dumps({"folder": str(folder)})


def read_results(folder: Path) -> dict[str, Any]:
    """What the ranks found: `ops`, and if asked for `machine` and `probe`."""
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def run(argument: str) -> None:
    """The entry of a rank."""
    folder = Path(json.loads(argument)["folder"])
    # Written by the process that started this one.
    order: Order = pickle.loads((folder / "order.pickle").read_bytes())
    rank = current_rank()
    device = rank_device(rank)
    progress = show_progress("measure", "timing ops on this machine", shown=rank.is_first)
    with process_group(device), progress as announce:
        timer = Timer(device, _pace(order), announce)
        results = _measure(order, rank, timer)
    if rank.is_first:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def _measure(order: Order, rank: Rank, timer: Timer) -> dict[str, Any]:
    # Before anything else takes memory, and leaves it to be used again.
    process_bytes = find_process_bytes(timer.device) if order.machine else 0.0
    dispatch = time_dispatch(timer)
    crowded = _crowded(rank, timer.device)
    capture_bytes = find_capture_bytes(timer.device) if order.machine else 0.0
    results: dict[str, Any] = {
        "ops": time_calls(order.calls, timer, dispatch, crowded=crowded),
        "row": time_row(order.row, timer, dispatch),
    }
    if not order.machine:
        return results
    settings = ProbeSettings.quick() if order.quick else ProbeSettings.thorough(timer.device.type)
    report = probe_cluster(rank, timer.device, settings, announce=timer.announce)
    s_per_tensor, s_per_byte = time_optimizer(timer, order.parameter_shapes, order.state_factor)
    figures = MachineFigures(
        dispatch=dispatch.op,
        overlap=time_overlap(timer),
        optimizer_s_per_tensor=s_per_tensor,
        optimizer_s_per_byte=s_per_byte,
        gathers_beside_compute=timer.device.type != "cpu",
        process_bytes=process_bytes,
        capture_bytes=capture_bytes,
        wrappers=time_wrappers(timer, rank.world_size),
    )
    return results | {"machine": cattrs.unstructure(figures), "probe": report.as_dict()}


def time_calls(
    calls: Sequence[OpCall], timer: Timer, dispatch: Dispatch, *, crowded: bool
) -> dict[str, dict[str, float]]:
    """Seconds of each call by its key, forward and backward; an op that cannot run by itself has none."""
    points: list[tuple[OpCall, str, Point]] = []
    for call in calls:
        if not can_run(call, timer.device):
            continue
        points.append((call, "forward_s", forward_point(call, timer.device, sustained=crowded)))
        if call.has_backward:
            points.append((call, "backward_s", backward_point(call, timer.device, sustained=crowded)))
    seconds = timer.time(*(point for _, _, point in points))
    found: dict[str, dict[str, float]] = {}
    for (call, name, _), each in zip(points, seconds, strict=True):
        # In training one backward pass runs all ops.
        alone_s = (
            each if name == "forward_s" else max(dispatch.op.backward_s, each - dispatch.start_backward_s)
        )
        found.setdefault(call.key, {})[name] = alone_s
    return found


def time_row(calls: Sequence[OpCall], timer: Timer, dispatch: Dispatch) -> dict[str, float]:
    """Seconds of ops one after the other, all forward and all backward: the median of some rounds."""
    row = Row([call for call in calls if can_run(call, timer.device)], timer.device)
    row.run()
    rounds = [row.run() for _ in range(ROW_ROUNDS)]
    starts_s = dispatch.start_backward_s * sum(call.has_backward for call in calls)
    return {
        "forward_s": slowest(statistics.median(forward for forward, _ in rounds)),
        "backward_s": max(0.0, slowest(statistics.median(backward for _, backward in rounds)) - starts_s),
    }


def _crowded(rank: Rank, device: torch.device) -> bool:
    return device.type == "cpu" and rank.world_size > core_count()


def _pace(order: Order) -> Pace:
    return Pace(rounds=1, budget_s=0.005, min_repeats=2, max_repeats=5) if order.quick else PACE
