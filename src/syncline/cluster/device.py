"""Which device and which communication backend a rank uses: decided here and nowhere else."""

from __future__ import annotations

import torch

from syncline.cluster.rank import Rank


def device_type() -> str:
    """The kind of device that this machine trains on: its accelerator, or the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None else "cpu"


def rank_device(rank: Rank) -> torch.device:
    """The device of one rank, made current where the device type has such a notion."""
    kind = device_type()
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device(kind, rank.local_index)
    torch.accelerator.set_device_index(rank.local_index)
    return device


def backend_for(kind: str) -> str:
    """The `torch.distributed` backends for tensors of a device, with gloo for CPU tensors always."""
    if kind == "cpu":
        return "gloo"
    return f"cpu:gloo,{kind}:{torch.distributed.get_default_backend_for_device(kind)}"
