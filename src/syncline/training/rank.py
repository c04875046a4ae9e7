"""What each rank of a run does, from joining the others to the last file."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncline.cluster.device import rank_device
from syncline.cluster.memory import MemoryMeter
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank
from syncline.cluster.traffic import TrafficMeter
from syncline.strategies.protocol import Job, TrainStep
from syncline.strategies.registry import parse_strategy
from syncline.training.batches import BatchSource, open_batches
from syncline.training.checkpoints import CheckpointInfo, Checkpoints, latest_checkpoint, read_info
from syncline.training.config import TrainConfig
from syncline.training.loop import Loop, LoopParts
from syncline.training.measurements import Measurements
from syncline.training.progress import progress_view
from syncline.training.run_folder import CHECKPOINTS_FOLDER, read_config
from syncline.training.schedule import default_optimizer, make_schedule, optimizer_factory
from syncline.training.seeding import seed_everything
from syncline.training.sinks import open_sinks
from syncline.training.stop_flag import StopFlag, catch_stop_signals
from syncline.training.summary import Status, Summary, summarise, write_summary
from syncline.workloads.load import LoadedWorkload, load_workload

ENTRY = "syncline.training.rank:run_rank"


def rank_argument(folder: Path, *, resume: bool) -> str:
    """What `run_rank` is started with."""
    return json.dumps({"folder": str(folder.absolute()), "resume": resume})


def run_rank(argument: str) -> None:
    """The entry of a started rank: train the run of a folder."""
    # Standard output belongs to the command's result; what a model prints goes where progress goes.
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(argument)
    folder = Path(order["folder"])
    train_rank(read_config(folder), folder, resume=order["resume"])


def train_rank(config: TrainConfig, folder: Path, *, resume: bool) -> Summary | None:
    """Train as this process's rank; the first rank writes the summary and returns it."""
    started = time.monotonic()
    rank = current_rank()
    device = rank_device(rank)
    with process_group(device), catch_stop_signals() as stop:
        meter, traffic = MemoryMeter(device), TrafficMeter()
        run = _prepare(config, rank, device)
        path = latest_checkpoint(folder / CHECKPOINTS_FOLDER) if resume or rank.restarts else None
        meter.reset_peak()
        with _loop(run, folder, path, stop) as loop:
            loop.run()
        figures = _gather(meter.peak_bytes(), traffic.sent())
        if not rank.is_first:
            return None
        status, reason = _ending(loop, config, stop)
        summary = summarise(
            config,
            world_size=rank.world_size,
            steps=loop.done,
            wall_s=time.monotonic() - started,
            status=status,
            reason=reason,
            measurements=loop.measurements,
            **figures,
        )
        write_summary(summary, folder)
        return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    config: TrainConfig
    rank: Rank
    device: torch.device
    workload: LoadedWorkload
    step: TrainStep
    batches: BatchSource


def _prepare(config: TrainConfig, rank: Rank, device: torch.device) -> _Run:
    """Build the same model on every rank and hand it to the strategy."""
    strategy = parse_strategy(config.strategy)
    strategy.check(world_size=rank.world_size, global_batch=config.batch, accumulate=config.accumulate)
    seed_everything(config.seed)
    workload = load_workload(config.model, data=config.data, seed=config.seed, input=config.input)
    model = workload.build_model().to(device)
    settings = config.optimizer or default_optimizer(workload.input)
    make_optimizer = workload.optimizer or optimizer_factory(settings)
    job = Job(
        model=model,
        optimizer=make_optimizer(model.parameters()),
        compute_loss=workload.compute_loss,
        rank=rank,
        device=device,
        options=config.step_options,
    )
    return _Run(
        config=config,
        rank=rank,
        device=device,
        workload=workload,
        step=strategy.setup(job),
        batches=open_batches(workload, config.batch, config.seed),
    )


@contextmanager
def _loop(run: _Run, folder: Path, path: Path | None, stop: StopFlag) -> Iterator[Loop]:
    """The loop with all that it works with, standing where the checkpoint left off."""
    config = run.config
    checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER, keep=config.checkpoint.keep, rank=run.rank)
    info = _load(run, checkpoints, path)
    done = info.step if info else 0
    sinks = open_sinks(folder, config.tracking, done=done) if run.rank.is_first else []
    title = f"{config.model} {config.strategy} x{run.rank.world_size}"
    view = progress_view(title, steps=config.steps, done=done) if run.rank.is_first else None
    parts = LoopParts(
        config=config,
        rank=run.rank,
        device=run.device,
        step=run.step,
        schedule=make_schedule(run.step.optimizer, config.schedule, steps=config.steps, done=done),
        batches=run.batches,
        evaluation=run.workload.evaluation,
        checkpoints=checkpoints,
        measurements=Measurements(
            global_batch=config.batch,
            target_loss=config.target_loss,
            train_s=info.train_s if info else 0.0,
            samples=info.samples if info else 0,
        ),
        sinks=sinks,
        view=view,
        stop=stop,
    )
    try:
        yield Loop(parts, done=done)
        checkpoints.close()
    finally:
        run.batches.close()
        for sink in sinks:
            sink.close()
        if view is not None:
            view.close()


def _load(run: _Run, checkpoints: Checkpoints, path: Path | None) -> CheckpointInfo | None:
    if path is None:
        return None
    info = read_info(path)
    checkpoints.load(run.step, path)
    run.batches.load_state_dict(info.data_state, done=info.step)
    return info


def _ending(loop: Loop, config: TrainConfig, stop: StopFlag) -> tuple[Status, str | None]:
    if not loop.stopped or loop.done >= config.steps:
        return "ok", None
    name = signal.Signals(stop.signal_number).name if stop.signal_number else "a signal to another rank"
    return "stopped", f"stopped by {name} after step {loop.done} of {config.steps}"


def _gather(peak: int | None, sent: dict[str, int] | None) -> dict[str, Any]:
    """Memory by rank and traffic summed over ranks."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (peak, sent))
    peaks = [each for each, _ in told]
    traffics = [each for _, each in told]
    return {
        "peak_memory_bytes": None if None in peaks else peaks,
        "sent_bytes": None if None in traffics else _sum(traffics),
    }


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    levels = {level for count in counts for level in count}
    return {level: sum(count.get(level, 0) for count in counts) for level in sorted(levels)}
