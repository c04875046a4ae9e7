"""All that one rank needs to run a plan: its shards, its programs, and the reduction of its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from syncline.errors import StrategyError
from syncline.graph.capture import capture_training
from syncline.graph.opgraph import OpGraph, TensorKind
from syncline.planning.plan import Plan
from syncline.planning.states import PARTIAL
from syncline.strategies.planned.builder import ProgramBuilder, Setting
from syncline.strategies.planned.fitting import fit_plan
from syncline.strategies.planned.layout import axes_in
from syncline.strategies.planned.layouts import GraphLayouts, lay_out
from syncline.strategies.planned.ops import Recomputing
from syncline.strategies.planned.parameters import (
    PlacedParameter,
    place_buffers,
    place_parameters,
    trained,
)
from syncline.strategies.planned.placing import place_tensors
from syncline.strategies.planned.program import Key, Program
from syncline.strategies.planned.randomness import RandomStreams
from syncline.strategies.planned.ranks import LiveMesh
from syncline.strategies.planned.reduction import GradientReducer
from syncline.strategies.planned.rows import row_axes, row_layout
from syncline.strategies.protocol import Job, LossFunction
from syncline.workloads.batch import flat_tensors, in_fixed_order, map_tensors
from syncline.workloads.workload import Batch


@dataclass(frozen=True)
class Bound:
    """A program with the tensors that it always takes."""

    program: Program
    fixed: dict[Key, Tensor]
    inputs: tuple[Key, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Of the batch's tensors on this rank."""
    summands: int
    """How many ranks have a summand of the loss."""
    draws: bool
    """Whether random numbers are drawn."""

    def __call__(self, batch: Batch) -> Tensor:
        """This rank's summand of the loss, or all of it."""
        tensors = flat_tensors(batch)
        given = tuple(tuple(tensor.shape) for tensor in tensors)
        if given != self.shapes:
            raise StrategyError(
                f"A rank was given a batch of shapes {_shown(given)}; its program was made for "
                f"{_shown(self.shapes)}.\nGive batches of one shape, without an incomplete last one, each "
                "rank its rows as step.rows says."
            )
        return self.program({**self.fixed, **dict(zip(self.inputs, tensors, strict=True))})


class Engine:
    """Runs a plan on one rank."""

    def __init__(
        self,
        job: Job,
        graph: OpGraph,
        plan: Plan,
        skeleton: nn.Module,
        *,
        bucket_bytes: int,
        optimise: bool,
    ) -> None:
        """Takes the model's parameters: those of the graph become DTensors of this rank's parts.

        Args:
            job: What is trained.
            graph: Its training step.
            plan: Checked for the graph and the ranks.
            skeleton: The model without weights, to capture how it is evaluated.
            bucket_bytes: How many bytes of gradients are reduced together.
            optimise: Whether programs go through `torch.compile`.
        """
        self.mesh = LiveMesh(plan.axes, job.rank.index, job.device)
        self._plan = plan
        self._skeleton = skeleton
        self._compute_loss: LossFunction = job.compute_loss
        layouts = lay_out(graph, plan)
        placings = place_tensors(layouts, plan, self.mesh)
        self.placed: dict[str, PlacedParameter] = place_parameters(
            job.model, placings, self.mesh, job.deferred
        )
        self._buffers = place_buffers(job.model, placings, self.mesh)
        self._rows = row_axes(layouts)
        self.streams = RandomStreams(job.device)
        self._setting = Setting(
            mesh=self.mesh,
            placed=self.placed,
            kept={name: placing.layout for name, placing in placings.items()},
            streams=self.streams,
            recomputing=Recomputing(),
            rows=row_layout(self._rows, len(plan.axes)),
            optimise=optimise,
        )
        recompute = plan.recompute or job.options.activation_checkpointing
        self._training = self._bind(layouts, recompute=recompute)
        self._evaluations: dict[tuple[torch.Size, ...], Bound] = {}
        self._reducer = GradientReducer(
            _backward_order(graph, self.placed), self.mesh, bucket_bytes=bucket_bytes
        )

    @property
    def row_parts(self) -> tuple[int, int]:
        """Into how many parts batches are cut by rows, and which of them is this rank's."""
        return self.mesh.members(self._rows), self.mesh.place(self._rows)

    def random_step(self) -> AbstractContextManager[None]:
        """Around the micro-batches of a step: random numbers for them."""
        return self.streams.step() if self._training.draws else nullcontext()

    def train(
        self, batch: Batch, *, share: float, last: bool, autocast: AbstractContextManager[None]
    ) -> Tensor:
        """Forward and backward of a micro-batch that is this share of the step; its loss, detached."""
        self._reducer.expect(last=last)
        with autocast:
            loss = self._training(batch) * share
        loss.backward()
        self._reducer.finish()
        self.streams.next_part()
        return loss.detach() * self._training.summands

    def evaluate(self, batch: Batch) -> Tensor:
        """The loss of a batch as evaluated; the mean over ranks is that of the global batch."""
        shapes = tuple(tensor.shape for tensor in flat_tensors(batch))
        if shapes not in self._evaluations:
            self._evaluations[shapes] = self._capture_evaluation(batch)
        bound = self._evaluations[shapes]
        return bound(batch).detach() * bound.summands

    def refresh(self) -> None:
        """Bring weights whose shares have changed up to date."""
        for one in self.placed.values():
            one.refresh()

    def settle(self) -> None:
        """Wait for weights that are on their way."""
        for one in self.placed.values():
            if not one.is_temporary:
                one.gather()

    def _bind(self, layouts: GraphLayouts, *, recompute: bool) -> Bound:
        builder = ProgramBuilder(layouts, self._setting, recompute=recompute)
        program = builder.build()
        graph = layouts.graph
        fixed: dict[Key, Tensor] = {}
        for tensor in graph.tensors:
            if tensor.kind is TensorKind.PARAMETER:
                fixed["weight", tensor.id] = self.placed[tensor.name].leaf
            elif tensor.kind is TensorKind.BUFFER:
                fixed["buffer", tensor.id] = self._buffers[tensor.name]
        loss = layouts.made[graph.outputs[0]]
        summands = self.mesh.members(axes_in(loss, PARTIAL))
        inputs: tuple[Key, ...] = tuple(("input", tensor) for tensor in graph.inputs)
        shapes = tuple(self._local_shape(graph.tensors[tensor].shape) for tensor in graph.inputs)
        return Bound(program, fixed, inputs, shapes, summands, builder.has_random)

    def _local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self.mesh.members(self._rows), *shape[1:]) if shape else shape

    def _capture_evaluation(self, batch: Batch) -> Bound:
        parts = self.mesh.members(self._rows)
        whole = in_fixed_order(map_tensors(batch, lambda one: _with_rows(one, parts)))
        self._skeleton.eval()
        graph = capture_training(self._skeleton, self._compute_loss, whole)
        return self._bind(lay_out(graph, fit_plan(self._plan, graph)), recompute=False)


def _shown(shapes: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(map(str, shapes))


def _with_rows(tensor: Tensor, parts: int) -> Tensor:
    if not tensor.ndim:
        return tensor.to("meta")
    return torch.empty((tensor.shape[0] * parts, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def _backward_order(graph: OpGraph, placed: Mapping[str, PlacedParameter]) -> Iterator[PlacedParameter]:
    """Trained parameters in the order in which backward is done with them."""
    first_use = {
        graph.tensors[tensor].name: op.id
        for op in reversed(graph.ops)
        for tensor in op.inputs
        if graph.tensors[tensor].kind is TensorKind.PARAMETER
    }
    wanted = [one for one in trained(placed) if one.placing.name in first_use]
    return iter(sorted(wanted, key=lambda one: -first_use[one.placing.name]))
