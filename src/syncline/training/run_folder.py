"""The folder of a run: making one, or taking up one that exists."""

from __future__ import annotations

from pathlib import Path

from syncline.errors import CheckpointError, ConfigError, RunFolderError
from syncline.training.checkpoints import latest_checkpoint, read_info
from syncline.training.config import TrainConfig
from syncline.training.config_file import build_config, read_settings

CONFIG_FILE = "config.toml"
CHECKPOINTS_FOLDER = "checkpoints"
LOGS_FOLDER = "logs"
FIXED_KEYS = ("model", "data", "batch", "seed")
"""What a resumed run may not change: its data order and weights would be another run's."""


def default_folder(config: TrainConfig, parent: Path = Path("runs")) -> Path:
    """The first unused name for this run below `parent`."""
    stem = f"{config.model}-{config.strategy}".replace(":", "-").replace("/", "-").replace("=", "-")
    number = 1
    while (path := parent / f"{stem}-{number:03d}").exists():
        number += 1
    return path


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


def read_config(folder: Path) -> TrainConfig:
    """The settings of the run in a folder."""
    path = folder / CONFIG_FILE
    if not path.exists():
        raise RunFolderError(f"There is no run in {folder}: it has no {CONFIG_FILE}.")
    return build_config(read_settings(path), str(path))


def check_resume(folder: Path, config: TrainConfig) -> None:
    """Refuse to resume what cannot go on exactly where it stopped."""
    saved = read_config(folder)
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
