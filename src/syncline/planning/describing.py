"""A choice of the search in the words of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncline.cluster.topology import Cluster
from syncline.graph.opgraph import Op, OpGraph
from syncline.graph.space import Dim
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import UNUSED
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import Axis, OpSharding, Plan, PlannedWorkload, SearchReport
from syncline.planning.search import Candidate, Search


def describe(
    search: Search,
    chosen: Candidate,
    workload: PlannedWorkload,
    cluster: Cluster,
    limit: float,
    report: SearchReport,
) -> Plan:
    """A choice in the words of a plan."""
    graph, axes = search.tables.graph, search.tables.axes
    ops: dict[str, OpSharding] = {}
    tied: dict[str, Keeping] = {}
    for op in graph.ops:
        index = search.tables.node_of[op.id]
        rows = search.tables.nodes[index].assignments
        split = {} if rows is None else name_split(op.space.dims, rows[chosen.choice[index]], axes)
        ops[op.name] = OpSharding(split=split, keep=chosen.keeping[index])
    for node, keep in zip(search.tables.nodes, chosen.keeping, strict=True):
        if node.tensor is not None and node.parameters is not None:
            tied[node.tensor.name] = keep
    return Plan(
        workload=workload,
        cluster=cluster.name,
        measured=cluster.measured,
        timed_share=_timed_share(search, chosen),
        memory_limit_bytes=limit,
        axes=tuple(
            Axis(name=axis.name, size=axis.size, level=cluster.levels[axis.level].name) for axis in axes.axes
        ),
        ops=ops,
        tied=tied,
        recompute=chosen.recompute,
        prediction=chosen.prediction,
        search=report,
        warnings=_warnings(graph, axes),
    )


def _timed_share(search: Search, chosen: Candidate) -> float:
    timed_s = total_s = 0.0
    for node, row in zip(search.tables.nodes, chosen.choice, strict=True):
        if node.costs is not None:
            seconds = node.weight * float(node.costs.forward_s[row] + node.costs.backward_s[row])
            total_s += seconds
            timed_s += seconds if node.costs.measured[row] else 0.0
    return timed_s / total_s if total_s else 0.0


def name_split(dims: Sequence[Dim], assignment: np.ndarray, axes: SearchAxes) -> dict[str, tuple[str, ...]]:
    """A sharding by the names of dims and axes."""
    split: dict[str, tuple[str, ...]] = {}
    for axis, dim in zip(axes.axes, assignment, strict=True):
        if dim != UNUSED:
            name = dims[dim].name
            split[name] = (*split.get(name, ()), axis.name)
    return split


def _warnings(graph: OpGraph, axes: SearchAxes) -> tuple[str, ...]:
    device = axes.cluster.device

    def seconds(op: Op) -> float:
        moved = 3 * (op.bytes_read + op.bytes_written)
        return max(op.flops / device.flops_per_s, moved / device.memory_bytes_per_s)

    return tuple(
        f"{op.name} ({op.target}) has no splitting rule, so every device runs all of it: "
        f"{op.flops / 1e9:.3g} GFLOP, {seconds(op) * 1e3:.3g} ms a step"
        for op in graph.unruled
    )
