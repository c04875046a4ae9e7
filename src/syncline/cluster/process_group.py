"""Opening and closing the process group that all ranks of a run share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from syncline.cluster.device import backend_for
from syncline.cluster.rank import launched_by_torchrun

TIMEOUT = timedelta(minutes=10)


def init_process_group(device: torch.device) -> None:
    """Join the ranks of this run; a process that no launcher started makes a group of its own."""
    backend = backend_for(device.type)
    device_id = None if device.type == "cpu" else device
    if launched_by_torchrun():
        dist.init_process_group(backend, timeout=TIMEOUT, device_id=device_id)
    else:
        dist.init_process_group(
            backend, store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT, device_id=device_id
        )


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """The group of all ranks, closed again at the end; one that is open already is used and left open."""
    if dist.is_initialized():
        yield
        return
    init_process_group(device)
    try:
        yield
    finally:
        dist.destroy_process_group()
