"""What is on disk of checkpoints: found and described without reading a tensor."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syncline.errors import CheckpointError

INFO_FILE = "syncline.json"
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """What a checkpoint says of itself, besides its tensors."""

    step: int
    samples: int
    train_s: float
    """Seconds of training up to here, over all starts."""
    model: str
    strategy: str
    world_size: int
    data_state: dict[str, Any] | None = None
    schema: int = 1


def list_checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted((path for path in found if (path / INFO_FILE).exists()), key=lambda path: path.name)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint, if there is one."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def read_info(path: Path) -> CheckpointInfo:
    """What a checkpoint says of itself."""
    try:
        return CheckpointInfo(**json.loads((path / INFO_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of Syncline: {error}") from None
