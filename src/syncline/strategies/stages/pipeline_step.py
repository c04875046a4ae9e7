"""The step of the strategy `pipeline`: torch's schedules over the stages of this rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from syncline.strategies.protocol import Job, Together
from syncline.strategies.stages.averaging import average_over_replicas, clip, sum_shared
from syncline.strategies.stages.holding import Stage, holders, keep_only, model_state
from syncline.strategies.stages.layout import Layout, SharedParameters
from syncline.strategies.stages.placing import Placed
from syncline.strategies.stages.program import StageProgram
from syncline.strategies.state import apply_state, collect_state
from syncline.workloads.batch import count_rows, list_tensors, split_rows, to_device
from syncline.workloads.workload import Batch

ScheduleClass = type[PipelineScheduleSingle] | type[PipelineScheduleMulti]
_SCHEDULES: Mapping[str, ScheduleClass] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}


def schedule_class(name: str) -> ScheduleClass:
    """Torch's schedule of this name."""
    return _SCHEDULES[name]


class PipelineStep(Together):
    """Micro-batches through the stages and back, then one optimizer step on each stage."""

    def __init__(
        self, job: Job, placed: Placed, layout: Layout, *, schedule: ScheduleClass, microbatches: int
    ) -> None:
        self.model = job.model
        self.optimizer = job.optimizer
        self.buffer_group = layout.peers
        self._options = job.options
        self._device = job.device
        self._layout = layout
        self._placed = placed
        self._microbatches = microbatches
        training = placed.blueprint.programs(placed.cuts, placed.rows, training=True)
        evaluating = self._evaluation_programs(placed.rows)
        self._stage_count = len(training)
        held = holders(job.model, list(zip(training, evaluating, strict=True)))
        places = {name: [stage % layout.depth for stage in stages] for name, stages in held.items()}
        self._shared = SharedParameters(layout, places)
        keep_only(job.model, job.optimizer, [name for name, at in places.items() if layout.place in at])
        self._state = model_state(job.model)
        self._schedule = self._make_schedule(schedule, training, microbatches)
        self.notes = (f"pipeline: {self._stage_count} stages, cut after {', '.join(placed.cuts)}",)

    def __call__(self, batch: Batch) -> Tensor:
        """Train on this replica's rows; their mean loss, on every rank of the pipeline."""
        self.model.train()
        parts = split_rows(to_device(batch, self._device), self._options.accumulate)
        total = torch.zeros((), device=self._device)
        for part in parts:
            total += self._run_schedule(part) / len(parts)
        self._bring_together()
        if self._options.clip_norm is not None:
            clip(self.model, self._shared, self._layout, self._options.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        dist.broadcast(total, src=self._layout.rank_at(self._last_place), group=self._layout.pipeline)
        return total

    def evaluate(self, batch: Batch) -> Tensor:
        """The mean loss on this replica's rows, on every rank of the pipeline, without training."""
        self.model.eval()
        count, rest = divmod(count_rows(batch), self._placed.rows)
        pieces = split_rows(to_device(batch, self._device), 1 if rest else count)
        with torch.no_grad(), self._autocast():
            loss = torch.stack([self._relay(list_tensors(piece)) for piece in pieces]).mean()
        dist.broadcast(loss, src=self._layout.rank_at(self._last_place), group=self._layout.pipeline)
        return loss

    def rows(self, global_batch: int) -> slice:
        """The rows of this rank's replica: all ranks of a pipeline are given the same."""
        return self._layout.rows(global_batch)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer state of this rank's stages, by parameter name."""
        return collect_state(self.model, self.optimizer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, perhaps from another strategy."""
        apply_state(self.model, self.optimizer, state)

    def _relay(self, batch: Sequence[Tensor]) -> Tensor:
        """The loss of one micro-batch that goes from stage to stage; 0 on ranks without the last stage."""
        programs = self._evaluation_programs(batch[0].shape[0])
        activation = torch.zeros((), device=self._device)
        for stage in range(self._layout.place, self._stage_count, self._layout.depth):
            entry = self._receive(programs[stage]) if stage else None
            activation = programs[stage](self._state, batch, entry)
            if stage + 1 < self._stage_count:
                dist.send(activation, dst=self._neighbour(1), group=self._layout.pipeline)
        has_loss = self._layout.place == self._last_place
        return activation if has_loss else torch.zeros((), device=self._device)

    @property
    def _last_place(self) -> int:
        return (self._stage_count - 1) % self._layout.depth

    def _run_schedule(self, batch: Batch) -> Tensor:
        losses: list[Tensor] = []
        given = {f"batch_{place}": tensor for place, tensor in enumerate(list_tensors(batch))}
        target = next(iter(given.values()))
        with self._autocast():
            self._schedule.step(target=target, losses=losses, return_outputs=False, **given)
        if not losses:
            return torch.zeros((), device=self._device)
        return torch.stack([loss.detach().float() for loss in losses]).mean()

    def _bring_together(self) -> None:
        """Gradients of the mean loss, from sums over micro-batches, stages and replicas."""
        sum_shared(self.model, self._shared)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self._microbatches * self._options.accumulate)
        average_over_replicas(gradients, self._layout)

    def _receive(self, program: StageProgram) -> Tensor:
        if program.entry is None:
            raise RuntimeError("a stage behind the first takes no activation")
        activation = torch.empty(program.entry.shape, dtype=program.entry.dtype, device=self._device)
        dist.recv(activation, src=self._neighbour(-1), group=self._layout.pipeline)
        return activation

    def _neighbour(self, distance: int) -> int:
        return self._layout.rank_at((self._layout.place + distance) % self._layout.depth)

    def _evaluation_programs(self, rows: int) -> list[StageProgram]:
        return self._placed.blueprint.programs(self._placed.cuts, rows, training=False)

    def _make_schedule(
        self, schedule: ScheduleClass, programs: Sequence[StageProgram], microbatches: int
    ) -> Any:
        indices = range(self._layout.place, self._stage_count, self._layout.depth)
        recompute = self._options.activation_checkpointing
        self.stages = [Stage(programs[index], self._state, recompute=recompute) for index in indices]
        stages = [
            self._pipeline_stage(index, stage, programs[index])
            for index, stage in zip(indices, self.stages, strict=True)
        ]
        given: Any = stages[0] if issubclass(schedule, PipelineScheduleSingle) else stages
        return schedule(
            given,
            microbatches,
            # The last stage's program ends in the loss itself.
            loss_fn=lambda output, target: output,
            # Torch would scale what earlier schedules of the same step have added up once more.
            scale_grads=False,
        )

    def _pipeline_stage(self, index: int, stage: Stage, program: StageProgram) -> PipelineStage:
        return PipelineStage(
            stage,
            index,
            self._stage_count,
            self._device,
            input_args=() if program.entry is None else (_example(program.entry),),
            output_args=(_example(program.exit),),
            group=self._layout.pipeline,
        )

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._options.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)


def _example(tensor: Any) -> Tensor:
    """A tensor without memory, from which torch makes its buffers."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)
