"""Which ops a search wants timed: those that the time of its plans depends on most."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping

import numpy as np

from syncline.planning.baselines import Shardings
from syncline.planning.calibration import Calibration, MachineFigures, OpSeconds
from syncline.planning.op_calls import OpCall, op_call
from syncline.planning.op_costs import local_sizes
from syncline.planning.tables import Node, Tables

COVERED = 0.98
"""The share of all estimated compute that is to be timed."""


def calls_to_time(tables: Tables, covered: float = COVERED) -> list[OpCall]:
    """The distinct calls of all shardings, the costliest first, until the share is covered."""
    estimates, calls = _estimate(tables)
    left = (1 - covered) * sum(estimates.values())
    chosen = sorted(estimates, key=lambda key: -estimates[key])
    while chosen and estimates[chosen[-1]] <= left:
        left -= estimates[chosen.pop()]
    return [calls[key] for key in chosen]


def calls_in_a_row(tables: Tables, shardings: Shardings, limit_bytes: float) -> list[OpCall]:
    """The calls of a step in its order, under one sharding, as far as inputs fit into so much memory."""
    graph, found, taken = tables.graph, [], 0.0
    for op in graph.ops:
        if op.is_view or not op.inputs:
            continue
        row = np.array([shardings[op.id]], dtype=np.int8)
        call = op_call(graph, op, [math.ceil(size) for size in local_sizes(op.space, tables.axes, row)[0]])
        taken += sum(one.bytes for one in call.inputs)
        if taken > limit_bytes:
            break
        found.append(call)
    return found


def calibration(
    tables: Tables,
    timed: Mapping[str, OpSeconds],
    machine: MachineFigures,
    in_a_row: OpSeconds | None = None,
) -> Calibration:
    """The timings for a search, and from them how far estimates are off."""
    ratios = []
    for node in tables.nodes:
        for row, call in _calls(tables, node):
            if node.costs is not None and call.key in timed:
                estimate = node.costs.forward_s[row] + node.costs.backward_s[row]
                if estimate > 0:
                    ratios.append((timed[call.key].forward_s + timed[call.key].backward_s) / estimate)
    scale = float(statistics.median(ratios)) if ratios else 1.0
    if in_a_row is None:
        return Calibration(machine=machine, ops=dict(timed), scale=scale)
    return Calibration(machine=machine, ops=dict(timed), scale=scale, in_a_row=in_a_row)


def _estimate(tables: Tables) -> tuple[dict[str, float], dict[str, OpCall]]:
    estimates: dict[str, float] = {}
    calls: dict[str, OpCall] = {}
    for node in tables.nodes:
        for row, call in _calls(tables, node):
            if node.costs is not None:
                estimate = node.weight * float(node.costs.forward_s[row] + node.costs.backward_s[row])
                estimates[call.key] = estimates.get(call.key, 0.0) + estimate
                calls[call.key] = call
    return estimates, calls


def _calls(tables: Tables, node: Node) -> Iterator[tuple[int, OpCall]]:
    """The calls of a node's shardings, by row; views and constants are not worth timing."""
    op, rows = node.op, node.assignments
    if op is None or rows is None or op.is_view or not op.inputs:
        return
    for row, sizes in enumerate(local_sizes(op.space, tables.axes, rows)):
        yield row, op_call(tables.graph, op, [math.ceil(size) for size in sizes])
