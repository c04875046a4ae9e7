"""Opening and closing the process group that all ranks of a run share."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from syncline._torch_compat import open_groups
from syncline.cluster.device import backend_for
from syncline.cluster.membership import Generation
from syncline.cluster.rank import Rank, current_rank, launched_by_torchrun

TIMEOUT = timedelta(minutes=10)
_UNUSED_TAG = 2**30
"""Of messages between two ranks: nobody sends one with it."""
_LOST = ("third_party/gloo", "Application timeout caused pair closure")
"""What gloo says where a connection is closed by the other side, and by this one."""


def init_process_group(device: torch.device) -> None:
    """Join the ranks of this run; a process that no launcher started makes a group of its own."""
    backend = backend_for(device.type)
    device_id = None if device.type == "cpu" else device
    rank = current_rank()
    dist.init_process_group(
        backend,
        store=_open_store(rank),
        rank=rank.index,
        world_size=rank.world_size,
        timeout=TIMEOUT,
        device_id=device_id,
    )


def open_generation(device: torch.device, store: dist.Store, generation: Generation, rank: Rank) -> None:
    """Join the members of a generation, after leaving those of the one before."""
    if dist.is_initialized():
        dist.destroy_process_group()
    index, size = generation.place(rank)
    dist.init_process_group(
        backend_for(device.type),
        store=dist.PrefixStore(f"generation-{generation.number}", store),
        rank=index,
        world_size=size,
        timeout=TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )


def leave_group(group: dist.ProcessGroup) -> None:
    """Leave a group whose other members may be gone; it closes when the last reference to it is dropped."""
    break_off(group)
    dist.destroy_process_group(group)


def break_off(group: dist.ProcessGroup) -> None:
    """Have all that is under way in a group fail at once, here and for those who wait for this rank.

    Gloo cannot abort, and where a message arrives for a collective that has failed, it reads no further: what
    comes later waits until its time is out. But a receive that runs out of time closes all connections.
    """
    if group.name() != "gloo":
        group.abort()
        return
    # By the group's own methods: it may be taken off torch's list meanwhile.
    for peer in range(group.size()):
        if peer != group.rank():
            with contextlib.suppress(RuntimeError):
                group.recv([torch.zeros(1)], peer, _UNUSED_TAG).wait(timedelta(milliseconds=1))


def break_off_all() -> None:
    """The same for every group of this process."""
    for group in open_groups():
        break_off(group)


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error of a collective says that a peer is gone, rather than that the program is wrong."""
    return isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST)


def meeting_store() -> dist.Store:
    """The store where ranks find each other, kept by the first rank or by torchrun."""
    store, _, _ = next(dist.rendezvous("env://", timeout=TIMEOUT))
    return store


def _open_store(rank: Rank) -> dist.Store:
    if not launched_by_torchrun():
        return dist.HashStore()
    # Torchrun keeps its store when it starts ranks again, and with it the addresses of those that died.
    return dist.PrefixStore(f"start-{rank.restarts}", meeting_store())


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
        # DDP keeps itself alive in circles. Collected after the group, it would close gloo's threads while
        # it holds the interpreter's lock, for which they may be waiting.
        gc.collect()
        dist.destroy_process_group()
