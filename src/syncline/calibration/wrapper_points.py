"""What torch's own ways to train in parallel take besides computing and sending: on a model so small that
nothing else is left. Collective: all ranks call it together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from syncline.calibration.machine_points import Timer
from syncline.cluster.timing import Point
from syncline.planning.calibration import WrapperFigures
from syncline.workloads.optimizers import FUSED_DEVICES, FusedAdamW, make_adam

_LAYERS = 6
_WIDTH = 16
_TENSORS = 2 * _LAYERS


def time_wrappers(timer: Timer, world_size: int) -> WrapperFigures:
    """Differences between small models under a wrapper and bare ones."""
    if world_size == 1:
        return WrapperFigures()
    device = timer.device
    bare, replica, sharded = _model(device), _replica(device), _sharded(device, world_size)
    zero = ZeroRedundancyOptimizer(
        replica.parameters(), optimizer_class=FusedAdamW, fused=device.type in FUSED_DEVICES
    )
    bare_s, replica_s, sharded_s = timer.time(
        *(_gradient_point(model, device) for model in (bare, replica, sharded))
    )
    # The gradients of the last pass are there for the optimizers.
    for model in (bare, replica, sharded):
        _pass(model, device)()
    bare_step_s, zero_step_s, sharded_step_s = timer.time(
        *(
            Point(label="wrappers", build=lambda step=optimizer.step: step)
            for optimizer in (_adamw(bare), zero, _adamw(sharded))
        )
    )
    return WrapperFigures(
        data_s_per_step=max(0.0, replica_s - bare_s),
        sharded_s_per_group=max(0.0, sharded_s - bare_s) / (_LAYERS + 1),
        sharded_s_per_tensor=max(0.0, sharded_step_s - bare_step_s) / _TENSORS,
        zero1_s_per_tensor=max(0.0, zero_step_s - bare_step_s / world_size) / _TENSORS,
    )


def _model(device: torch.device) -> nn.Module:
    return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))).to(device)


def _replica(device: torch.device) -> nn.Module:
    ids = None if device.type == "cpu" else [device.index]
    return DistributedDataParallel(_model(device), device_ids=ids, gradient_as_bucket_view=True)


def _sharded(device: torch.device, world_size: int) -> nn.Module:
    model = _model(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return make_adam(model.parameters(), lr=1e-6, weight_decay=0.01)


def _gradient_point(model: nn.Module, device: torch.device) -> Point:
    return Point(label="wrappers", build=lambda: _pass(model, device))


def _pass(model: nn.Module, device: torch.device) -> Callable[[], None]:
    rows = torch.rand(4, _WIDTH, device=device)

    def work() -> None:
        model.zero_grad()
        model(rows).sum().backward()

    return work
