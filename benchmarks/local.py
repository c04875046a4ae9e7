"""Local parallelism against pipelines: the same model, the same global batch, taking turns in one run.

    python benchmarks/local.py [--ranks 2] [--microbatches 2 4 8] [--model ...] [--batch 16] [-o FILE]

Contenders with m = 2, 4 and 8 micro-batches: `local` (chunked, adding up m micro-batches a step) and the
schedules gpipe, 1f1b and zero-bubble of `pipeline`, on stages cut at the same places. They take turns by
`STEPS` steps between two barriers, so that a busy machine slows all alike. What other numbers of ranks or
micro-batches came to stays in the record, so that it can be measured in parts.

What the formulas of `syncline plan --allow-inexact` say is reported beside it, with f, b, a (forward,
backward and head of one micro-batch), u (the optimizer) and c (one activation to the next stage) measured
just before, f to u on all ranks at once. The cores that compute also carry messages here, so that none of
them is hidden. More ranks than cores are oversubscribed, and the record says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from record import write_record
from syncline.cluster.device import rank_device
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import current_rank
from syncline.launch.local import launch_local
from syncline.strategies.local.block import Rule
from syncline.strategies.local.step import LocalStep
from syncline.strategies.protocol import Job, StepOptions
from syncline.strategies.registry import parse_strategy
from syncline.strategies.stages.pipeline_step import PipelineStep
from syncline.training.batches import GlobalBatches
from syncline.workloads.batch import list_tensors, split_rows
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

MICROBATCHES = (2, 4, 8)
CUTS = {2: "blocks.3", 4: "blocks.1+blocks.3+blocks.5"}
"""Equal stages of the model that is measured by default."""
SCHEDULES = ("gpipe", "1f1b", "zero-bubble")
STEPS = 4
WARM_UP_ROUNDS = 1
REPEATS = 7
WITHIN = 0.10


def main() -> None:
    """Start the ranks and write what they measured, beside what was measured on other numbers of ranks."""
    arguments = _parse()
    with tempfile.TemporaryDirectory() as folder:
        order = vars(arguments) | {"output": str(arguments.output), "folder": folder}
        launch_local("local:measure", json.dumps(order), ranks=arguments.ranks, logs=Path(folder) / "logs")
        figures = json.loads((Path(folder) / "figures.json").read_text())
    setting = {
        "model": arguments.model,
        "batch": arguments.batch,
        "head": arguments.head,
        "ranks": arguments.ranks,
        "oversubscribed": arguments.ranks > (os.cpu_count() or 1),
        "rounds": arguments.rounds,
    }
    cells = [_compare(figures, parts, schedule) for parts in arguments.microbatches for schedule in SCHEDULES]
    for cell in cells:
        print(json.dumps(cell))
    write_record(arguments.output, {"runs": _merge(arguments.output, setting, cells)})


def _merge(path: Path, setting: dict[str, Any], cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All runs of a record: this setting's with its new cells beside the others that it has."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    others = [run for run in runs if run["ranks"] != setting["ranks"]]
    same = [run for run in runs if {**run, "cells": None} == {**setting, "cells": None}]
    new = {cell["microbatches"] for cell in cells}
    kept = [cell for run in same for cell in run["cells"] if cell["microbatches"] not in new]
    merged = sorted([*kept, *cells], key=lambda cell: cell["microbatches"])
    return sorted([*others, {**setting, "cells": merged}], key=lambda run: run["ranks"])


def _compare(figures: dict[str, Any], parts: int, schedule: str) -> dict[str, Any]:
    """One schedule against `local`, measured and by the formulas."""
    costs, times = figures["costs"][str(parts)], figures["times"]
    ours, theirs = times[f"local {parts}"], times[f"{schedule} {parts}"]
    measured = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    theirs_s, ours_s = predict(schedule, costs, parts), predict("local", costs, parts)
    predicted = theirs_s / ours_s
    return {
        "schedule": schedule,
        "microbatches": parts,
        "local_step_s": statistics.median(ours),
        "pipeline_step_s": statistics.median(theirs),
        "predicted_local_step_s": ours_s,
        "predicted_pipeline_step_s": theirs_s,
        "stages": costs,
        "measured_ratio": measured,
        "predicted_ratio": predicted,
        "error": measured / predicted - 1,
        "within": abs(measured / predicted - 1) <= WITHIN,
        "local_should_win": predicted > 1,
        "local_wins": measured > 1,
    }


def predict(schedule: str, costs: Sequence[dict[str, float]], parts: int) -> float:
    """Seconds of a step, by the formulas of `syncline.planning.staged`."""
    stages, send_s = len(costs), max(one["send_s"] for one in costs)
    busy = [one["forward_s"] + one["backward_s"] for one in costs]
    update = max(one["update_s"] for one in costs)
    if schedule == "local":
        slowest = max(
            parts * (b + one["head_s"] + send_s) + one["update_s"] for b, one in zip(busy, costs, strict=True)
        )
        # A burst of steps is timed from an empty pipeline, so that its filling counts in part.
        return slowest + sum(one["forward_s"] for one in costs[:-1]) / STEPS
    messages = 2 * (stages - 1) * send_s + 2 * (parts - 1) * send_s
    if schedule == "zero-bubble":
        return parts * max(busy) + (stages - 1) * max(busy) / 3 + messages + update
    return sum(busy) + (parts - 1) * max(busy) + messages + update


def measure(argument: str) -> None:
    """What each rank does: time its stage alone, then all contenders in turns."""
    order = json.loads(argument)
    device = rank_device(current_rank())
    torch.set_num_threads(1)
    with process_group(device):
        contenders: dict[str, Callable[[], None]] = {}
        costs: dict[int, Any] = {}
        for parts in order["microbatches"]:
            ours, batch = _prepare(order, f"local:head={order['head']}", parts, device)
            contenders[f"local {parts}"] = lambda step=ours, rows=batch: _train(step, rows)
            for schedule in SCHEDULES:
                name = f"pipeline:schedule={schedule},microbatches={parts}"
                theirs, rows = _prepare(order, name, 1, device)
                contenders[f"{schedule} {parts}"] = lambda step=theirs, rows=rows: _train(step, rows)
                if schedule == "1f1b":
                    costs[parts] = _stage_costs(ours, theirs, batch, parts)
        times = _take_turns(contenders, order["rounds"])
        if current_rank().is_first:
            text = json.dumps({"costs": costs, "times": times})
            (Path(order["folder"]) / "figures.json").write_text(text)


def _train(step: Any, batch: Any) -> None:
    step(batch)


def _prepare(order: dict[str, Any], strategy: str, accumulate: int, device: torch.device) -> tuple[Any, Any]:
    workload = load_workload(order["model"], seed=0)
    model = workload.build_model().to(device)
    job = Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-5),
        compute_loss=workload.compute_loss,
        rank=current_rank(),
        device=device,
        options=StepOptions(accumulate=accumulate),
        example=workload_batch(workload, order["batch"] // accumulate),
    )
    if workload.data is None:
        raise TypeError("the benchmark needs a model with built-in data")
    cuts = order["cuts"] or CUTS[current_rank().world_size]
    step = parse_strategy(f"{strategy},cuts={cuts}").setup(job)
    return step, GlobalBatches(workload.data.train, order["batch"], 0).rows(0, step.rows(order["batch"]))


def _stage_costs(ours: LocalStep, theirs: PipelineStep, batch: Any, parts: int) -> list[dict[str, float]]:
    """Seconds of each rank's stage for one micro-batch, measured on all ranks at once."""
    tensors = list_tensors(split_rows(batch, parts)[0])
    block, stage = ours.blocks[0], theirs.stages[0]
    named = {f"batch_{place}": tensor for place, tensor in enumerate(tensors)}
    layers = block.training.layers
    entry = [] if layers.entry is None else [torch.randn(layers.entry.shape, requires_grad=True)]
    outs: list[torch.Tensor] = []
    rule = Rule(blocks=2)

    def forward() -> None:
        outs[:] = [stage(*entry, **named)]

    def backward() -> None:
        outs[0].backward(torch.ones_like(outs[0]))

    def learn() -> None:
        rule.learn(rule.forward([block], entry[0] if entry else None, tensors), tensors, [])

    dist.barrier()
    forward_s, backward_s = _time_pair(forward, backward)
    whole_s = _time(learn)
    update_s = _time(lambda: theirs.optimizer.step())
    theirs.optimizer.zero_grad(set_to_none=True)
    ours.optimizer.zero_grad(set_to_none=True)
    own = {
        "forward_s": forward_s,
        "backward_s": backward_s,
        "head_s": max(0.0, whole_s - forward_s - backward_s),
        "update_s": update_s,
        "send_s": _send_s(layers.entry.shape if layers.entry is not None else None),
    }
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return told


def _send_s(entry: Sequence[int] | None) -> float:
    """Seconds until the next stage has an activation: half of a way there and back, the slowest link's."""
    rank, world = current_rank().index, dist.get_world_size()
    shapes: list[Any] = [None] * world
    dist.all_gather_object(shapes, None if entry is None else list(entry))
    slowest = torch.zeros(())
    for taker in range(1, world):
        dist.barrier()
        if rank in (taker - 1, taker):
            slowest = torch.maximum(slowest, torch.tensor(_back_and_forth(shapes[taker], taker) / 2))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def _back_and_forth(shape: Sequence[int], taker: int) -> float:
    activation = torch.zeros(tuple(shape))

    def take_and_give() -> None:
        dist.recv(activation, taker - 1)
        dist.send(activation, taker - 1)

    def give_and_take() -> None:
        dist.send(activation, taker)
        dist.recv(activation, taker)

    return _time(take_and_give if current_rank().index == taker else give_and_take)


def _time_pair(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    """Medians of two actions that follow each other."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for action, kept in zip((first, second), times, strict=True):
            started = time.perf_counter()
            action()
            kept.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def _time(action: Callable[[], None]) -> float:
    return _time_pair(action, lambda: None)[0]


def _take_turns(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + WARM_UP_ROUNDS):
        for name in list(contenders) if number % 2 else list(reversed(contenders)):
            dist.barrier()
            started = time.perf_counter()
            for _ in range(STEPS):
                contenders[name]()
            dist.barrier()
            if number >= WARM_UP_ROUNDS:
                times[name].append((time.perf_counter() - started) / STEPS)
    return times


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gpt2-tiny:layers=8,width=192,heads=6,seq=128,positions=128")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--head", default="readout")
    parser.add_argument("--microbatches", type=int, nargs="+", default=MICROBATCHES)
    parser.add_argument("--cuts", help="where all contenders are cut, such as blocks.3; by default evenly")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "results/local.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
