"""The search in the paper's setting: its configurations, its costs, its objective."""

from __future__ import annotations

import time

from syncline.errors import PlanningError
from syncline.graph import OpGraph
from syncline.planning.elimination import solve
from syncline.planning.pase.configurations import Ints, configurations
from syncline.planning.pase.expert import data_parallel, expert_for
from syncline.planning.pase.layer import Layer, LayerKind
from syncline.planning.pase.layer_graph import LayerGraph, read_layers
from syncline.planning.pase.pricing import layer_costs, tables, total
from syncline.planning.pase.result import LayerChoice, PaseResult, folded
from syncline.planning.pase.rules import BatchNorm

RATIO = 5000.0
"""rho of the paper's code: 10 TFLOP/s, and 16 GB/s in words of 8 bytes."""
_CUTOFF, _CUTOFF_OF_CONVOLUTIONS = 1, 4


def plan_pase(
    graph: OpGraph,
    *,
    devices: int,
    ratio: float = RATIO,
    cutoff: int | None = None,
    batch_norm: BatchNorm = "paper",
) -> PaseResult:
    """The strategy that is cheapest under PaSE's cost model, on a flat network of equal devices.

    Args:
        graph: a captured model, with its loss.
        devices: p, how many there are.
        ratio: rho, the FLOPs that a device does while it sends one word.
        cutoff: the least size of a part of a split dim; by default 4 if there are convolutions, else 1.
        batch_norm: priced over the batch alone as in the paper's code, or by channel as it is.

    Raises:
        PlanningError: if there is nothing to split, or over nothing.
    """
    began = time.perf_counter()
    _check(devices, ratio, cutoff)
    layers = read_layers(graph, batch_norm)
    if not layers.layers:
        raise PlanningError("No op of the graph depends on an input and a weight: there is nothing to plan.")
    if cutoff is None:
        cutoff = _CUTOFF_OF_CONVOLUTIONS if layers.has(LayerKind.CONVOLUTION) else _CUTOFF
    space = [configurations(layer.nest.dims, devices, cutoff) for layer in layers.layers]
    solution = solve(*tables(layers, space, ratio))
    chosen = [rows[index : index + 1] for rows, index in zip(space, solution.choice, strict=True)]
    expert = expert_for(layers)
    return PaseResult(
        devices=devices,
        ratio=ratio,
        cutoff=cutoff,
        cost=solution.value,
        data_parallel_cost=total(layers, data_parallel(layers, devices), ratio),
        expert=expert.name if expert else None,
        expert_cost=total(layers, expert.strategy(layers, devices), ratio) if expert else None,
        choices=_choices(layers, chosen, ratio),
        unpriced=layers.unpriced,
        statistics=solution.statistics,
        seconds=time.perf_counter() - began,
    )


def _check(devices: int, ratio: float, cutoff: int | None) -> None:
    if devices < 1:
        raise PlanningError(f"There are {devices} devices; a plan needs at least 1.")
    if not ratio >= 0:
        raise PlanningError(f"The ratio is {ratio} FLOPs a word; it must not be negative.")
    if cutoff is not None and cutoff < 1:
        raise PlanningError(f"The cutoff is {cutoff}; a part of a dim has at least size 1.")


def _choices(graph: LayerGraph, chosen: list[Ints], ratio: float) -> tuple[LayerChoice, ...]:
    return tuple(_choice(layer, parts, ratio) for layer, parts in zip(graph.layers, chosen, strict=True))


def _choice(layer: Layer, parts: Ints, ratio: float) -> LayerChoice:
    shown = [index for index, dim in enumerate(layer.nest.dims) if dim.splittable]
    return LayerChoice(
        name=" + ".join(folded(layer.joined)),
        ops=(*layer.joined, *layer.fused),
        dims=tuple(layer.nest.dims[index].name for index in shown),
        parts=tuple(int(parts[0, index]) for index in shown),
        cost=float(layer_costs(layer, parts, ratio)[0]),
    )
