"""Building what a rank trains with: workload, strategy, batches, and the loop around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from syncline.cluster.memory import MemoryMeter
from syncline.cluster.rank import Rank
from syncline.planning.plan import Plan
from syncline.strategies.protocol import Job, TrainStep, defers_weights
from syncline.strategies.registry import parse_strategy
from syncline.training.batches import BatchSource, open_batches
from syncline.training.checkpoint_info import CheckpointInfo, read_info
from syncline.training.checkpoints import Checkpoints
from syncline.training.config import TrainConfig
from syncline.training.inspection.inspector import Inspector
from syncline.training.inspection.window import Window
from syncline.training.loop import Loop, LoopParts
from syncline.training.measurements import Measurements
from syncline.training.progress import announce, progress_view
from syncline.training.run_folder import CHECKPOINTS_FOLDER
from syncline.training.schedule import make_optimizer, make_schedule
from syncline.training.seeding import seed_everything
from syncline.training.sinks import open_sinks
from syncline.training.stop_flag import StopFlag
from syncline.training.survival import Survival
from syncline.training.surviving_loop import SurvivingLoop
from syncline.workloads.deferred.building import Built
from syncline.workloads.example import workload_batch
from syncline.workloads.load import LoadedWorkload, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as one rank sees it, before its first step."""

    config: TrainConfig
    rank: Rank
    device: torch.device
    workload: LoadedWorkload
    step: TrainStep
    batches: BatchSource
    meter: MemoryMeter
    """Counts from before the model was built."""


def prepare_run(config: TrainConfig, rank: Rank, device: torch.device, plan: Plan | None = None) -> Run:
    """Build the same model on every rank and hand it to the strategy, with a plan if there is one.

    Strategies that need parts of weights only get a model without the large ones.
    """
    strategy = parse_strategy(config.strategy)
    strategy.check(world_size=rank.world_size, global_batch=config.batch, accumulate=config.accumulate)
    seed_everything(config.seed)
    deferring = defers_weights(strategy)
    workload = load_workload(
        config.model, data=config.data, seed=config.seed, input=config.input, deferring=deferring
    )
    # Data is loaded when it is first asked for, and is no part of what training takes.
    batches = open_batches(workload, config.batch, config.seed)
    meter = MemoryMeter(device)
    built = workload.build_deferred(device) if deferring else Built(workload.build_model().to(device))
    model = built.made
    job = Job(
        model=model,
        optimizer=make_optimizer(workload, config.optimizer, model),
        compute_loss=workload.compute_loss,
        rank=rank,
        device=device,
        options=config.step_options,
        example=workload_batch(workload, config.batch // config.accumulate),
        plan=plan,
        cluster=config.emulate,
        deferred=built.weights,
        steps=config.steps,
    )
    return Run(
        config=config,
        rank=rank,
        device=device,
        workload=workload,
        step=strategy.setup(job),
        batches=batches,
        meter=meter,
    )


@contextmanager
def open_loop(
    run: Run, folder: Path, path: Path | None, stop: StopFlag, survival: Survival | None = None
) -> Iterator[Loop]:
    """The loop with all that it works with, standing where the checkpoint left off."""
    config = run.config
    checkpoints = Checkpoints(folder / CHECKPOINTS_FOLDER, keep=config.checkpoint.keep, rank=run.rank)
    info = _load(run, checkpoints, path)
    if run.rank.is_first:
        announce(run.step.notes)
    done = info.step if info else 0
    sinks = open_sinks(folder, config.tracking, done=done) if run.rank.is_first else []
    view = None
    if run.rank.is_first:
        title = f"{config.model} {config.strategy}"
        view = progress_view(title, ranks=run.rank.world_size, steps=config.steps, done=done)
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
        meter=run.meter,
        inspector=Inspector(
            Window.of(inspect=config.inspect, steps=config.steps), folder, run.rank.index, run.device
        ),
    )
    try:
        yield Loop(parts, done=done) if survival is None else SurvivingLoop(parts, survival, done=done)
        checkpoints.close()
    finally:
        run.batches.close()
        for sink in sinks:
            sink.close()
        if view is not None:
            view.close()


def _load(run: Run, checkpoints: Checkpoints, path: Path | None) -> CheckpointInfo | None:
    if path is None:
        return None
    info = read_info(path)
    groups = run.step.optimizer.param_groups
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    checkpoints.load(run.step, path)
    # The settings of this start win over those of the one before: a learning rate may be changed on resume.
    for group, own in zip(groups, settings, strict=True):
        group.pop("initial_lr", None)
        group.update(own)
    run.batches.load_state_dict(info.data_state, done=info.step)
    return info
