"""Starting a run: checking what was asked, starting its ranks, and saying how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from syncline.cluster.device import device_type, rank_device
from syncline.cluster.emulation import parse_emulation
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank, launched_by_torchrun
from syncline.cluster.topology import NETWORK_LEVEL, NODE_LEVEL
from syncline.errors import ConfigError, NonFiniteLossError, RankFailedError, SynclineError
from syncline.launch.emulated import launch_emulated
from syncline.launch.local import launch_local
from syncline.launch.stopping import LaunchStopped
from syncline.strategies.protocol import survives_node_loss
from syncline.strategies.registry import parse_strategy
from syncline.training.checkpoint_info import latest_checkpoint, read_info
from syncline.training.config import TrainConfig
from syncline.training.config_file import write_config
from syncline.training.entry import ENTRY, rank_argument
from syncline.training.folder_state import FolderState
from syncline.training.inspection.window import Window
from syncline.training.plans import check_given_plan, keep_given_plan
from syncline.training.preflight import resolve_workload
from syncline.training.progress import announce_start
from syncline.training.run_folder import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    LOGS_FOLDER,
    default_folder,
    make_folder,
    newest_folder,
    resume_config,
)
from syncline.training.summary import (
    SUMMARY_FILE,
    Status,
    Summary,
    read_summary,
    summarise,
    write_summary,
)

CPU_RANKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended."""

    folder: Path
    summary: Summary | None
    """None on all ranks but the first, when torchrun started this process."""
    signal_number: int | None = None
    """The signal that stopped it."""


def start_training(config: TrainConfig, folder: Path | None = None, *, resume: bool = False) -> Ended:
    """Train a run to its end, on ranks started here or as the rank that torchrun started.

    Raises:
        SynclineError: The user can act upon it; the run's folder says the same in `summary.json`.
    """
    if launched_by_torchrun():
        return _join(config, folder, resume=resume)
    config = replace(config, ranks=count_ranks(config))
    folder = folder or default_folder(config)
    if resume:
        config = resume_config(folder, config)
    config = resolve_run(config)
    before = FolderState(folder)
    _open_folder(config, folder, resume=resume)
    return _launch(config, folder, before, resume=resume)


def count_ranks(config: TrainConfig) -> int:
    """How many ranks a run has when it starts them itself."""
    if config.emulate is not None:
        count = parse_emulation(config.emulate).world_size
        if config.ranks not in (None, count):
            raise ConfigError(
                f"'{config.emulate}' emulates {count} ranks, but {config.ranks} are asked for.\n"
                "Leave --ranks out, or emulate as many."
            )
        return count
    if config.ranks is not None:
        return config.ranks
    if parse_strategy(config.strategy).name == "single":
        return 1
    return CPU_RANKS if device_type() == "cpu" else torch.accelerator.device_count()


def resolve_run(config: TrainConfig) -> TrainConfig:
    """The run with its data named; raises what can be known to fail before any rank is started."""
    strategy = parse_strategy(config.strategy)
    ranks = config.ranks or 1
    strategy.check(world_size=ranks, global_batch=config.batch, accumulate=config.accumulate)
    check_given_plan(config)
    Window.of(inspect=config.inspect, steps=config.steps)
    return resolve_workload(config, ranks)


def _open_folder(config: TrainConfig, folder: Path, *, resume: bool) -> None:
    if not resume:
        make_folder(folder)
    keep_given_plan(config, folder)
    write_config(config, folder / CONFIG_FILE)
    (folder / SUMMARY_FILE).unlink(missing_ok=True)


def _join(config: TrainConfig, folder: Path | None, *, resume: bool) -> Ended:
    """Be one of torchrun's ranks; the first one chooses and makes the folder for all."""
    # A launcher does without it, which saves it a second at its start.
    from syncline.training.rank import train_rank

    rank = current_rank()
    config = replace(config, ranks=rank.world_size, emulate=None)
    if rank.restarts:
        folder = folder or newest_folder(config)
        resume = folder is not None and (folder / CONFIG_FILE).exists()
    elif resume:
        config = resume_config(folder or default_folder(config), config)
    config = resolve_run(config)
    folder = folder or default_folder(config)
    before = FolderState(folder)
    # One group for all that follows: a second one would find the first one's addresses in torchrun's store.
    with process_group(rank_device(rank)):
        folder = _agree_on_folder(config, folder, rank, resume=resume)
        noted = _failure_noted(config, folder, before) if rank.is_first else nullcontext()
        with noted:
            return Ended(folder=folder, summary=train_rank(config, folder, resume=resume))


def _agree_on_folder(config: TrainConfig, folder: Path, rank: Rank, *, resume: bool) -> Path:
    """The first rank makes its choice and tells the others, its failure to do so included."""
    chosen: list[Path | SynclineError] = [folder]
    if rank.is_first:
        try:
            _open_folder(config, folder, resume=resume)
        except SynclineError as error:
            chosen[0] = error
    dist.broadcast_object_list(chosen)
    if isinstance(chosen[0], SynclineError):
        raise chosen[0]
    return chosen[0]


def _launch(config: TrainConfig, folder: Path, before: FolderState, *, resume: bool) -> Ended:
    """Start ranks and wait for them."""
    started = time.monotonic()
    announce_start(config.ranks or 1, folder)
    try:
        with _failure_noted(config, folder, before):
            _run_ranks(config, folder, resume=resume)
    except LaunchStopped as stopped:
        summary = _existing_summary(folder) or _ending(config, folder, "stopped", str(stopped), started)
        if not summary.steps and not before.has_trained:
            before.restore()
        return Ended(folder=folder, summary=summary, signal_number=stopped.signal_number)
    return Ended(folder=folder, summary=read_summary(folder))


@contextmanager
def _failure_noted(config: TrainConfig, folder: Path, before: FolderState) -> Iterator[None]:
    """Within, an error leaves a summary; one that kept the run from starting leaves all as it was."""
    started = time.monotonic()
    try:
        yield
    except (RankFailedError, NonFiniteLossError) as error:
        _ending(config, folder, "failed", str(error), started)
        raise
    except SynclineError as error:
        if before.has_trained:
            _ending(config, folder, "failed", str(error), started)
        else:
            before.restore()
        raise


def _run_ranks(config: TrainConfig, folder: Path, *, resume: bool) -> None:
    argument, logs = rank_argument(folder, resume=resume), folder / LOGS_FOLDER
    if config.emulate is None:
        ranks = config.ranks or 1
        launch_local(ENTRY, argument, ranks=ranks, logs=logs, max_restarts=config.max_restarts)
        return
    emulation = parse_emulation(config.emulate)
    sent = launch_emulated(
        ENTRY,
        argument,
        emulation=emulation,
        logs=logs,
        max_restarts=config.max_restarts,
        survives=survives_node_loss(parse_strategy(config.strategy)),
    )
    # The counters of the links themselves stand above what ranks know of their sockets.
    measured = {NODE_LEVEL: sent.inside, NETWORK_LEVEL: sent.between}
    write_summary(replace(read_summary(folder), sent_bytes=measured), folder)


def _existing_summary(folder: Path) -> Summary | None:
    return read_summary(folder) if (folder / SUMMARY_FILE).exists() else None


def _ending(config: TrainConfig, folder: Path, status: Status, reason: str, started: float) -> Summary:
    """Write the summary of a run whose ranks could not write it themselves."""
    last = latest_checkpoint(folder / CHECKPOINTS_FOLDER)
    summary = summarise(
        config,
        world_size=config.ranks or 1,
        steps=read_info(last).step if last else 0,
        wall_s=time.monotonic() - started,
        status=status,
        reason=reason,
    )
    write_summary(summary, folder)
    return summary
