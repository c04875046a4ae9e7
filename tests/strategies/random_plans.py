"""Plans that nobody would make: every op split at random, as far as that is legal."""

from __future__ import annotations

import numpy as np

from syncline.cluster.machine import machines_like_this
from syncline.graph.opgraph import OpGraph, TensorKind
from syncline.planning.axes import SearchAxes, search_axes
from syncline.planning.baselines import data_parallel
from syncline.planning.choices import legal_assignments
from syncline.planning.describing import name_split
from syncline.planning.parameter_costs import KEEPINGS, Keeping
from syncline.planning.plan import Axis, OpSharding, Plan, PlannedWorkload, SearchReport
from syncline.planning.prediction import Memory, Prediction, Times
from syncline.planning.roles import constant_ops


def random_plan(graph: OpGraph, *, nodes: int, per_node: int, seed: int, odd_ops: int | None = None) -> Plan:
    """A legal plan from random numbers; two in three ops with room for it are split over each axis.

    With `odd_ops`, about so many ops are split by chance and the rest by rows: every odd edge is a collective
    or two, and ten thousand of them take minutes.
    """
    random = np.random.default_rng(seed)
    share = 1.0 if odd_ops is None else odd_ops / len(graph.ops)
    axes = search_axes(machines_like_this("test", nodes=nodes, per_node=per_node))
    constant = constant_ops(graph)
    by_rows = data_parallel(graph, axes)
    ops: dict[str, OpSharding] = {}
    for op in graph.ops:
        rows = legal_assignments(graph, op, axes)
        used = 1 + (rows >= 0).sum(axis=1) * 3
        is_odd = random.random() < share
        row = rows[random.choice(len(rows), p=used / used.sum())] if is_odd else np.array(by_rows[op.id])
        split = {} if op.id in constant else name_split(op.space.dims, row, axes)
        keep = KEEPINGS[random.integers(len(KEEPINGS))] if is_odd else Keeping.REPLICATED
        ops[op.name] = OpSharding(split=split, keep=keep)
    tied = {
        tensor.name: Keeping.REPLICATED
        for tensor in graph.of_kind(TensorKind.PARAMETER)
        if len(graph.consumers[tensor.id]) > 1
    }
    return as_plan(graph, axes, ops, tied, recompute=bool(random.integers(2)))


def as_plan(
    graph: OpGraph,
    axes: SearchAxes,
    ops: dict[str, OpSharding],
    tied: dict[str, Keeping],
    *,
    recompute: bool = False,
) -> Plan:
    """A plan of shardings, which says nothing of what it costs."""
    return Plan(
        workload=PlannedWorkload(
            model="test",
            batch=0,
            parameters=graph.parameter_count,
            forward_flops=graph.forward_flops,
            optimizer_state_factor=2.0,
        ),
        cluster=axes.cluster.name,
        measured=False,
        memory_limit_bytes=1e12,
        axes=tuple(
            Axis(name=axis.name, size=axis.size, level=axes.cluster.levels[axis.level].name)
            for axis in axes.axes
        ),
        ops=ops,
        tied=tied,
        recompute=recompute,
        prediction=Prediction(times=Times(), memory=Memory()),
        search=SearchReport(space="1", seconds=0.0, ops=len(graph.ops), choices=0, exposed_share=1.0),
    )


def data_plan(graph: OpGraph, *, nodes: int, per_node: int, keep: Keeping = Keeping.REPLICATED) -> Plan:
    """Data parallelism over all ranks, with all parameters kept in one way."""
    axes = search_axes(machines_like_this("test", nodes=nodes, per_node=per_node))
    ops = {
        op.name: OpSharding(split=name_split(op.space.dims, np.array(row), axes), keep=keep)
        for op, row in ((op, data_parallel(graph, axes)[op.id]) for op in graph.ops)
    }
    tied = [one.name for one in graph.of_kind(TensorKind.PARAMETER) if len(graph.consumers[one.id]) > 1]
    return as_plan(graph, axes, ops, dict.fromkeys(tied, keep))
