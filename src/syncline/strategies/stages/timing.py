"""How long the segments between cut points take on this rank's device, measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from syncline.graph.cutting import CutPoint, Cutting
from syncline.graph.opgraph import Tensor as GraphTensor
from syncline.strategies.stages.program import StageProgram

REPEATS = 3


def measure_segments(
    cutting: Cutting, points: Sequence[CutPoint], state: Mapping[str, Tensor], device: torch.device
) -> list[float]:
    """Seconds of forward and backward of each segment, the least of a few tries; no weight is changed.

    Running statistics of batch norms are put back, gradients are dropped.
    """
    graph = cutting.graph
    kept = {name: tensor.detach().clone() for name, tensor in state.items() if not tensor.requires_grad}
    batch = [_stand_in(graph.tensors[tensor], device) for tensor in graph.inputs]
    seconds = []
    with torch.random.fork_rng():
        for part in cutting.stages(points):
            program = StageProgram(graph, part, device)
            entry = None if program.entry is None else _stand_in(program.entry, device).requires_grad_()
            runs = [_time(program, state, batch, entry) for _ in range(REPEATS)]
            seconds.append(min(runs))
    with torch.no_grad():
        for name, tensor in kept.items():
            state[name].copy_(tensor)
    return seconds


def _time(
    program: StageProgram, state: Mapping[str, Tensor], batch: Sequence[Tensor], entry: Tensor | None
) -> float:
    wanted = [state[name] for name in program.state_names if state[name].requires_grad]
    wanted += [] if entry is None else [entry]
    _settle(batch)
    started = time.perf_counter()
    result = program(state, batch, entry)
    if wanted and result.requires_grad:
        torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
    _settle(batch)
    return time.perf_counter() - started


def _settle(batch: Sequence[Tensor]) -> None:
    if batch and batch[0].device.type != "cpu":
        torch.accelerator.synchronize(batch[0].device)


def _stand_in(tensor: GraphTensor, device: torch.device) -> Tensor:
    if tensor.dtype.is_floating_point:
        return torch.randn(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)
