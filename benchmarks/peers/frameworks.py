"""The peers by name. A new one is a function that sets it up, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from deepspeed_engines import deepspeed_pipeline, deepspeed_zero
from fairscale_shards import fairscale_oss, fairscale_sharded_ddp
from layer_rows import row_refusal
from peer import Peer, Task, Trainer
from ray_workers import launch_ray, ray_ddp, ray_fsdp2
from torch_loops import torch_ddp, torch_fsdp2, torch_zero
from torchft_replicas import torchft_ddp
from wrappers import accelerate_ddp, fabric_ddp, fabric_fsdp2

from syncline.errors import ConfigError, unknown_name


def _ray(name: str, setup: Callable[[Task], Trainer], kin: str) -> Peer:
    return Peer(name=name, framework="ray", package="ray.train", setup=setup, kin=kin, launch=launch_ray)


def _blocked(framework: str, package: str, reason: str) -> Peer:
    return Peer(name="ddp", framework=framework, package=package, setup=None, blocked=f"Not run: {reason}.")


_PEERS = (
    Peer(name="ddp", framework="torch", package="torch", setup=torch_ddp),
    Peer(name="zero-1", framework="torch", package="torch", setup=torch_zero, kin="zero1"),
    Peer(name="fsdp2", framework="torch", package="torch", setup=torch_fsdp2, kin="sharded"),
    Peer(name="ddp", framework="accelerate", package="accelerate", setup=accelerate_ddp),
    Peer(name="ddp", framework="fabric", package="lightning_fabric", setup=fabric_ddp),
    Peer(name="fsdp2", framework="fabric", package="lightning_fabric", setup=fabric_fsdp2, kin="sharded"),
    Peer(name="zero-1", framework="deepspeed", package="deepspeed", setup=deepspeed_zero(1), kin="zero1"),
    Peer(name="zero-2", framework="deepspeed", package="deepspeed", setup=deepspeed_zero(2), kin="zero1"),
    Peer(name="zero-3", framework="deepspeed", package="deepspeed", setup=deepspeed_zero(3), kin="sharded"),
    Peer(
        name="pipeline",
        framework="deepspeed",
        package="deepspeed",
        setup=deepspeed_pipeline,
        kin="pipeline",
        refusal=row_refusal,
    ),
    _ray("ddp", ray_ddp, "data"),
    _ray("fsdp2", ray_fsdp2, "sharded"),
    Peer(name="oss", framework="fairscale", package="fairscale", setup=fairscale_oss, kin="zero1"),
    Peer(
        name="sharded-ddp",
        framework="fairscale",
        package="fairscale",
        setup=fairscale_sharded_ddp,
        kin="zero1",
    ),
    Peer(name="ddp", framework="torchft", package="torchft", setup=torchft_ddp),
    _blocked("colossalai", "colossalai", "it needs an environment of its own"),
    _blocked("megatron-core", "megatron.core", "it calls CUDA throughout, and trains models of its own"),
    _blocked("axonn", "axonn", "it runs on a CPU only with changes to its sources"),
    _blocked("horovod", "horovod.torch", "it does not build against this torch without changes"),
)
PEERS = {one.full_name: one for one in _PEERS}


def choose_peers(only: list[str]) -> list[Peer]:
    """The peers of these frameworks, or of these full names; without any, all."""
    known = {name for peer in _PEERS for name in (peer.framework, peer.full_name)}
    for name in only:
        if name not in known:
            raise ConfigError(unknown_name("framework", name, known))
    return [one for one in _PEERS if not only or {one.framework, one.full_name} & set(only)]
