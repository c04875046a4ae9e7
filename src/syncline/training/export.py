"""The weights of a run as one plain file, for people who never heard of ranks."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from syncline.errors import CheckpointError, MissingExtraError, RunFolderError
from syncline.strategies.state import model_tensors
from syncline.training.checkpoint_info import latest_checkpoint
from syncline.training.loading import check_fits
from syncline.training.run_folder import CHECKPOINTS_FOLDER, read_config
from syncline.workloads.load import load_workload


def export_weights(folder: Path, output: Path) -> int:
    """Write the newest checkpoint's weights as safetensors; how many tensors there are.

    The names are those of the plain model's `state_dict`, so `load_state_dict` takes them as they are.
    """
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtraError("safetensors", "export", "syncline export") from None
    check_output(output)
    weights = read_weights(folder)
    partial = output.with_name(f"{output.name}.partial")
    save_file(weights, str(partial))
    partial.replace(output)
    return len(weights)


def check_output(output: Path) -> None:
    """Refuse a file that cannot be written, before the weights are read."""
    if output.is_dir():
        raise RunFolderError(f"{output} is a folder. Give a file, such as {output / 'model.safetensors'}.")
    if not os.access(output.parent, os.W_OK):
        raise RunFolderError(
            f"{output} cannot be written: there is no folder {output.parent}, or it is not yours to write to."
        )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The newest checkpoint's weights, whole, by the names of the plain model."""
    config = read_config(folder)
    path = latest_checkpoint(folder / CHECKPOINTS_FOLDER)
    if path is None:
        raise CheckpointError(f"The run in {folder} has no checkpoint to export.")
    workload = load_workload(config.model, data=config.data, seed=config.seed, input=config.input)
    model: nn.Module = workload.build_model()
    state = {f"model.{name}": tensor for name, tensor in model_tensors(model).items()}
    check_fits(state, path)
    with warnings.catch_warnings():
        # That there are no ranks here is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    # A tied weight has several names; each gets a copy, since the file cannot share memory.
    return {name: torch.clone(tensor).contiguous() for name, tensor in model.state_dict().items()}
