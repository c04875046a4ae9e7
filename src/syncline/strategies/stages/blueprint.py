"""What stages are made from: the model's graph by mode and batch size, and the cut points chosen on it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from syncline.errors import StrategyError
from syncline.graph.capture import capture_training
from syncline.graph.cutting import Cutting
from syncline.strategies.protocol import Job
from syncline.strategies.stages.program import StageProgram
from syncline.workloads.batch import map_tensors


class Blueprint:
    """Captures a job's model, for as many rows as a stage is called with, and makes programs of it.

    Training and evaluation have graphs of their own: dropout and batch norms differ. Cut points are known by
    the names of what crosses, which are the same in both.
    """

    def __init__(self, job: Job, name: str) -> None:
        if job.example is None:
            raise StrategyError(
                f"Strategy '{name}' cuts the model's graph, so it must know what a batch looks like before "
                "the first step.\nGive one: syncline.parallelize(..., example_batch=batch)."
            )
        self.device = job.device
        self._twin = _without_weights(job.model)
        self._compute_loss = job.compute_loss
        self._example = job.example
        self._cuttings: dict[tuple[int, bool], Cutting] = {}
        self._programs: dict[tuple[tuple[str, ...], int, bool], list[StageProgram]] = {}

    def cutting(self, rows: int, *, training: bool) -> Cutting:
        """The graph of this many rows and its cut points: those that evaluation has too."""
        key = (rows, training)
        if key not in self._cuttings:
            like = self.cutting(rows, training=False) if training else None
            self._twin.train(training)
            graph = capture_training(self._twin, self._compute_loss, self._rows(rows))
            self._cuttings[key] = Cutting(graph, like)
        return self._cuttings[key]

    def programs(self, cuts: Sequence[str], rows: int, *, training: bool) -> list[StageProgram]:
        """The stages that these cuts make, ready to run on this many rows."""
        key = (tuple(cuts), rows, training)
        if key not in self._programs:
            cutting = self.cutting(rows, training=training)
            parts = cutting.stages([cutting.point(name) for name in cuts])
            self._programs[key] = [StageProgram(cutting.graph, part, self.device) for part in parts]
        return self._programs[key]

    def _rows(self, rows: int) -> Any:
        def resized(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

        return map_tensors(self._example, resized)


def _without_weights(model: nn.Module) -> nn.Module:
    """A copy on the meta device, to capture again when this rank has let go of other stages' weights."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.to("meta")
    return copy.deepcopy(model, memo)
