"""From a model to a plan in one call: capture, then search. No process group and no weights are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from syncline.cluster.presets import cluster_from
from syncline.cluster.topology import Cluster
from syncline.graph.capture import capture_training
from syncline.graph.opgraph import OpGraph
from syncline.planning.pins import Pin
from syncline.planning.plan import Plan
from syncline.planning.planner import Request, make_plan
from syncline.planning.table_builder import ADAM_STATE_FACTOR
from syncline.workloads.batch_form import write_form
from syncline.workloads.calling import loss_function
from syncline.workloads.example import batch_size, workload_batch
from syncline.workloads.load import LoadedWorkload
from syncline.workloads.workload import Batch, Workload


def plan(
    model: nn.Module,
    example_batch: Batch,
    *,
    cluster: str | Cluster = "local",
    loss_fn: Callable[[Any, Tensor], Tensor] | None = None,
    memory_bytes: float | None = None,
    pins: Sequence[Pin] = (),
    optimizer_state_factor: float = ADAM_STATE_FACTOR,
) -> Plan:
    """Find the fastest exact way to train a model on a cluster.

    Args:
        model: On any device, also meta. It is not changed.
        example_batch: Inputs and targets of one global batch, over all devices; only shapes and types matter.
        cluster: A `cluster.toml`, a preset such as `a100-dgx:4`, `2x4`, or a `Cluster`.
        loss_fn: Takes the model's output and the targets; by default cross-entropy, or for a `transformers`
            model its own.
        memory_bytes: The limit of a device; by default all that it has.
        pins: What is decided already.
        optimizer_state_factor: Bytes of optimizer state for each byte of a parameter.

    Raises:
        CaptureError: The model cannot be captured; names the line of its code.
        InfeasiblePlanError: Nothing fits; says what binds and what would.
    """
    graph = capture_training(model, loss_function(Workload(model=model, loss=loss_fn)), example_batch)
    request = Request(
        model=type(model).__name__,
        batch=batch_size(example_batch),
        memory_bytes=memory_bytes,
        pins=tuple(pins),
        state_factor=optimizer_state_factor,
    )
    where = cluster_from(cluster) if isinstance(cluster, str) else cluster
    found = make_plan(graph, where, request).plan
    return replace(found, workload=replace(found.workload, example=write_form(example_batch)))


def capture_workload(workload: LoadedWorkload, batch: int) -> OpGraph:
    """The graph of a workload's training step on a global batch of this size."""
    return capture_training(
        workload.build_model("meta"), workload.compute_loss, workload_batch(workload, batch)
    )
