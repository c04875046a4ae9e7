"""Which ops a search wants timed: those that the time of its plans depends on most."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping

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


def calibration(tables: Tables, timed: Mapping[str, OpSeconds], machine: MachineFigures) -> Calibration:
    """The timings for a search, and from them how far estimates are off."""
    ratios = []
    for node in tables.nodes:
        for row, call in _calls(tables, node):
            if node.costs is not None and call.key in timed:
                estimate = node.costs.forward_s[row] + node.costs.backward_s[row]
                if estimate > 0:
                    ratios.append((timed[call.key].forward_s + timed[call.key].backward_s) / estimate)
    scale = float(statistics.median(ratios)) if ratios else 1.0
    return Calibration(machine=machine, ops=dict(timed), scale=scale)


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
