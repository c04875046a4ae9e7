"""Loading a checkpoint into a step: what it must hold, what may be missing, and under which names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from syncline.errors import CheckpointError
from syncline.strategies.averaging.naming import find_saved, is_optional
from syncline.strategies.protocol import TrainStep
from syncline.strategies.state import AUXILIARY


def load_step(step: TrainStep, path: Path, group: dist.ProcessGroup | None = None) -> list[str]:
    """Put a checkpoint into a step; the names of what is no part of the model and starts anew."""
    state = step.state_dict()
    names = check_fits(state, path, step.scopes)
    wanted = {saved: state[name] for name, saved in names.items()}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(path), process_group=group)
    step.load_state_dict({name: wanted[saved] for name, saved in names.items()})
    return [name for name in state if name.startswith(AUXILIARY) and name not in names]


def check_fits(state: dict[str, Any], path: Path, scopes: Sequence[str] = ("",)) -> dict[str, str]:
    """The name in a checkpoint of each entry that a state takes from it.

    Refuses a checkpoint that lacks something this state needs, or has it in another shape.
    """
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    names = find_saved(state, saved, scopes)
    for name, value in state.items():
        entry = saved[names[name]] if name in names else None
        has_shape = not isinstance(entry, TensorStorageMetadata) or tuple(entry.size) == tuple(value.shape)
        if entry is not None and has_shape:
            continue
        if is_optional(name) or name.startswith(AUXILIARY):
            names.pop(name, None)
        elif entry is None:
            raise CheckpointError(
                f"The checkpoint {path} has no '{name}': it is of another model or optimizer.\n"
                "Resume with the model and optimizer of that run, or start a new run in another folder."
            )
        else:
            raise CheckpointError(
                f"'{name}' has shape {tuple(entry.size)} in the checkpoint {path} but {tuple(value.shape)} "
                "in this model.\nResume with the model of that run."
            )
    return names
