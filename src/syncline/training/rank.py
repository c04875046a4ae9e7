"""What each rank of a run does, from joining the others to the last file."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncline.cluster.device import rank_device
from syncline.cluster.rank import current_rank
from syncline.cluster.traffic import TrafficMeter
from syncline.planning.plan import Plan
from syncline.planning.prediction import Prediction
from syncline.strategies.protocol import TrainStep
from syncline.strategies.registry import parse_strategy
from syncline.training.checkpoint_info import latest_checkpoint
from syncline.training.config import TrainConfig
from syncline.training.loop import Loop
from syncline.training.plans import keep_plan, plan_of_run
from syncline.training.run import open_loop, prepare_run
from syncline.training.run_folder import CHECKPOINTS_FOLDER
from syncline.training.stop_flag import StopFlag, catch_stop_signals
from syncline.training.summary import Status, Summary, summarise, write_summary
from syncline.training.survival import Survival, open_group
from syncline.training.surviving_loop import SurvivingLoop


def train_rank(config: TrainConfig, folder: Path, *, resume: bool) -> Summary | None:
    """Train as this process's rank; the first rank writes the summary and returns it."""
    started = time.monotonic()
    rank = current_rank()
    device = rank_device(rank)
    strategy = parse_strategy(config.strategy)
    with open_group(strategy, rank, device) as survival, catch_stop_signals() as stop:
        # In a function of its own, so that nothing of the training outlives the group.
        return _train(config, folder, device, stop, survival, resume=resume, started=started)


def _train(
    config: TrainConfig,
    folder: Path,
    device: torch.device,
    stop: StopFlag,
    survival: Survival | None,
    *,
    resume: bool,
    started: float,
) -> Summary | None:
    rank = current_rank()
    traffic = TrafficMeter()
    run = prepare_run(config, rank, device, plan_of_run(config, folder, rank.world_size))
    if rank.is_first:
        keep_plan(getattr(run.step, "plan", None), folder)
    joins = survival is not None and rank.rejoins
    goes_on = (resume or rank.restarts) and not joins
    path = latest_checkpoint(folder / CHECKPOINTS_FOLDER) if goes_on else None
    run.meter.reset_peak()
    with open_loop(run, folder, path, stop, survival) as loop:
        if isinstance(loop, SurvivingLoop) and joins:
            loop.meet(is_new=True)
        loop.run()
    figures = _gather(run.meter.peak_bytes(), traffic.sent())
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
        prediction=_prediction(run.step),
        **figures,
    )
    write_summary(summary, folder)
    return summary


def _ending(loop: Loop, config: TrainConfig, stop: StopFlag) -> tuple[Status, str | None]:
    if not loop.stopped or loop.done >= config.steps:
        return "ok", None
    name = signal.Signals(stop.signal_number).name if stop.signal_number else "a signal to another rank"
    return "stopped", f"stopped by {name} after step {loop.done} of {config.steps}"


def _prediction(step: TrainStep) -> Prediction | None:
    """That of the plan which the step runs, if it runs one."""
    plan = getattr(step, "plan", None)
    return plan.prediction if isinstance(plan, Plan) else None


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
