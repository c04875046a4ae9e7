"""Saving and finding checkpoints: asynchronous, resharding, and never harming the last good one.

`torch.distributed.checkpoint` writes into `step-N.partial`; when all ranks' parts are on disk the first
rank adds `syncline.json` and renames the folder to `step-N`. So what has its final name is whole.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from syncline.cluster.process_group import leave_group
from syncline.cluster.rank import Rank
from syncline.errors import CheckpointError
from syncline.strategies.protocol import TrainStep
from syncline.training.checkpoint_info import (
    INFO_FILE,
    CheckpointInfo,
    latest_checkpoint,
    list_checkpoints,
)
from syncline.training.files import write_json
from syncline.training.loading import load_step
from syncline.training.progress import announce
from syncline.training.signals import any_rank


class Checkpoints:
    """The checkpoints of one run, as one rank writes them."""

    def __init__(self, folder: Path, *, keep: int, rank: Rank) -> None:
        """Every rank must make this at the same time: it opens a process group of its own."""
        self.folder = folder
        self._keep = keep
        self._is_first = rank.is_first
        # Saving goes on in a thread beside training: a group of its own keeps their collectives apart.
        self._group: dist.ProcessGroup | None = _open_group()
        self._pending: Future[Any] | None = None
        self._finish_error: OSError | None = None
        self._finished = threading.Event()
        if self._is_first:
            folder.mkdir(parents=True, exist_ok=True)
            self._remove_partials()

    def save(self, state: dict[str, Any], info: CheckpointInfo) -> None:
        """Copy the state and start writing it; the last save is waited for first, but no rank for another."""
        self._finish_pending()
        partial = self.folder / f"step-{info.step:08d}.partial"
        future = dcp.async_save(
            state, storage_writer=dcp.FileSystemWriter(partial), process_group=self._group
        )
        if not isinstance(future, Future):
            raise TypeError(f"async_save returned {type(future)}, not a future")
        self._finished.clear()
        if self._is_first:
            future.add_done_callback(lambda done: self._finish(done, partial, info))
        self._pending = future

    def wait(self) -> None:
        """Block until what was saved is on disk under its final name, for every rank to see."""
        if self._finish_pending():
            # No rank may look for the newest checkpoint before the first one has renamed it.
            dist.barrier(self._group)

    def _finish_pending(self) -> bool:
        """Block until this rank's part is done, on the first rank the final name too; False without any."""
        if self._pending is None:
            return False
        pending, self._pending = self._pending, None
        try:
            pending.result()
            # A future is done before its callbacks have run.
            if self._is_first:
                self._finished.wait()
            if self._finish_error is not None:
                raise self._finish_error
        except (OSError, dcp.CheckpointException) as error:
            last = latest_checkpoint(self.folder)
            kept = f"The last good checkpoint is {last}." if last else "There is no earlier checkpoint."
            raise CheckpointError(
                f"A checkpoint could not be written to {self.folder}: {error}\n{kept}\n"
                "Is the disk full, or the folder not writable?"
            ) from error
        return True

    def abandon(self) -> None:
        """Give up what is being saved: ranks that were to write it are gone. What is whole stays."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.add_done_callback(lambda done: done.exception())
        group, self._group = self._group, None
        if group is not None:
            leave_group(group)

    def reopen(self) -> None:
        """Save with the members of the process group of now; every one must call this."""
        self._group = _open_group()
        self._finish_error = None
        if self._is_first:
            self._remove_partials()

    def close(self) -> None:
        """Wait for the last save and end the group."""
        self.wait()
        dist.destroy_process_group(self._group)

    def load(self, step: TrainStep, path: Path) -> None:
        """Put a checkpoint into a step, whatever strategy and world size it was saved under."""
        new = load_step(step, path, self._group)
        if any_rank(bool(new), torch.device("cpu"), self._group) and self._is_first:
            announce([f"{path.name} has no heads for some of these blocks: they start anew"])

    def _remove_partials(self) -> None:
        for partial in self.folder.glob("*.partial"):
            # One that was abandoned may still be written to by a thread that is about to fail.
            shutil.rmtree(partial, ignore_errors=True)

    def _finish(self, done: Future[Any], partial: Path, info: CheckpointInfo) -> None:
        try:
            if done.exception() is not None:
                return
            write_json(partial / INFO_FILE, asdict(info))
            final = partial.with_suffix("")
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            for old in list_checkpoints(self.folder)[: -self._keep]:
                shutil.rmtree(old)
        except OSError as error:
            self._finish_error = error
        finally:
            self._finished.set()


def _open_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError("every rank takes part in checkpoints, but this one has no group")
    return group
