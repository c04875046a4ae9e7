"""The folder of a run: making one, or taking up one that exists."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from syncline.errors import CheckpointError, ConfigError, RunFolderError
from syncline.training.checkpoint_info import latest_checkpoint, read_info
from syncline.training.config import TrainConfig
from syncline.training.config_file import build_config, read_settings

CONFIG_FILE = "config.toml"
CHECKPOINTS_FOLDER = "checkpoints"
LOGS_FOLDER = "logs"
FIXED_KEYS = ("model", "data", "batch", "seed")
"""What a resumed run may not change: its data order and weights would be another run's."""


RUNS_FOLDER = Path("runs")


def default_folder(config: TrainConfig, parent: Path = RUNS_FOLDER) -> Path:
    """The first unused name for this run below `parent`."""
    return next(path for path in _names(config, parent) if not path.exists())


def newest_folder(config: TrainConfig, parent: Path = RUNS_FOLDER) -> Path | None:
    """The folder that `default_folder` gave last."""
    used = list(itertools.takewhile(Path.exists, _names(config, parent)))
    return used[-1] if used else None


def _names(config: TrainConfig, parent: Path) -> Iterator[Path]:
    stem = f"{config.model}-{config.strategy}".replace(":", "-").replace("/", "-").replace("=", "-")
    return (parent / f"{stem}-{number:03d}" for number in itertools.count(1))


def make_folder(path: Path) -> None:
    """Make a run's folder; what is in it already is never overwritten."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        occupied = any(path.iterdir())
    except OSError as error:
        raise RunFolderError(f"The run's folder {path} cannot be made: {error}") from None
    if occupied:
        raise RunFolderError(
            f"The folder {path} is not empty, and a run never overwrites another.\n"
            "Add --resume to go on with the run in it, or give another folder with -o."
        )


def discard_folder(path: Path) -> None:
    """Remove the folder of a run that could not start, and the one for all runs if nothing else is in it."""
    shutil.rmtree(path, ignore_errors=True)
    if path.parent == RUNS_FOLDER:
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def check_run(folder: Path) -> None:
    """Refuse a folder that no run was started in."""
    if not folder.is_dir():
        raise RunFolderError(f"There is no folder {folder}, so there is no run in it.")
    if not (folder / CONFIG_FILE).exists():
        raise RunFolderError(f"There is no run in {folder}: it has no {CONFIG_FILE}.")


def read_config(folder: Path) -> TrainConfig:
    """The settings of the run in a folder."""
    check_run(folder)
    path = folder / CONFIG_FILE
    return build_config(read_settings(path), str(path))


def resume_config(folder: Path, config: TrainConfig) -> TrainConfig:
    """The settings to resume a run with; refuses those with which it cannot go on where it stopped."""
    saved = read_config(folder)
    config = replace(config, data=config.data or saved.data)
    for key in FIXED_KEYS:
        before, now = getattr(saved, key), getattr(config, key)
        if before != now:
            raise ConfigError(
                f"The run in {folder} has {key} = {before!r}, not {now!r}: it cannot go on exactly with "
                f"another {key}.\nLeave it out to resume, or start a new run in another folder."
            )
    path = latest_checkpoint(folder / CHECKPOINTS_FOLDER)
    if path is None:
        raise CheckpointError(
            f"The run in {folder} has no checkpoint to resume from.\n"
            "Start again in another folder, with [checkpoint] every = N in the file given with --config."
        )
    done = read_info(path).step
    if done >= config.steps:
        raise ConfigError(
            f"The run in {folder} has made {done} steps of {config.steps}: there is nothing left to do.\n"
            f"Give more, such as --steps {2 * done}."
        )
    return config
