"""From a graph and a cluster that is here to measured figures: what to time, timing it, and keeping it."""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs
import torch

from syncline.calibration.cache import Circumstances, Timings, read_timings, write_timings
from syncline.calibration.rank import ENTRY, Order, read_results, write_order
from syncline.calibration.site import Site
from syncline.cluster.machine import core_count, device_name
from syncline.cluster.probe_report import ProbeReport
from syncline.cluster.topology import Cluster
from syncline.graph.opgraph import OpGraph
from syncline.launch.emulated import launch_emulated
from syncline.launch.local import launch_local
from syncline.launch.variables import cache_folder, threads_per_rank
from syncline.planning.baselines import data_parallel
from syncline.planning.calibration import Calibration, MachineFigures, OpSeconds
from syncline.planning.measuring import calibration, calls_in_a_row, calls_to_time
from syncline.planning.op_calls import OpCall
from syncline.planning.planner import Request, search_tables
from syncline.planning.tables import Tables

_ROW_BYTES = 2 << 30
"""Of the inputs of ops that are timed one after the other."""
_OPTIMIZER_BYTES = 256 << 20
"""Parameters beyond this do not change what a byte costs the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A cluster with the figures of this machine, and the timings of ops on it."""

    cluster: Cluster
    calibration: Calibration
    timed: int
    """How many ops were timed now; the others were known."""


def measure(
    graph: OpGraph, site: Site, request: Request, *, folder: Path | None = None, quick: bool = False
) -> Measured:
    """Time what plans for a graph depend on, on as many ranks of this machine as will run there.

    Args:
        graph: The captured training step.
        site: Which cluster, and how its ranks run on this machine.
        request: What will be planned.
        folder: Where timings are kept; by default in the user's cache.
        quick: For figures of the right order only; they are not kept.

    Raises:
        ClusterError: The ranks cannot be started.
    """
    folder = folder or cache_folder()
    circumstances = _circumstances(site)
    known = Timings() if quick else read_timings(folder, circumstances)
    tables = search_tables(graph, site.cluster, request)
    wanted = calls_to_time(tables)
    row = tuple(calls_in_a_row(tables, data_parallel(graph, tables.axes), _ROW_BYTES))
    missing = {call.key: call for call in (*wanted, *row) if call.key not in known.ops}
    names = _Names(optimizer=f"state {request.state_factor:g}", row=_digest(row))
    if missing or names.optimizer not in known.machine or names.row not in known.rows:
        order = Order(
            calls=tuple(missing.values()),
            machine=names.optimizer not in known.machine,
            row=row,
            parameter_shapes=_parameter_shapes(graph),
            state_factor=request.state_factor,
            quick=quick,
        )
        results = _run(order, site)
        known.ops |= results["ops"]
        known.rows[names.row] = _ratio(results["row"], known.ops, row)
        if order.machine:
            known.machine[names.optimizer] = {"figures": results["machine"], "probe": results["probe"]}
        if not quick:
            write_timings(folder, circumstances, known)
    return _measured(tables, site, request, known, names, len(missing))


@dataclass(frozen=True, slots=True)
class _Names:
    """What the figures of a request are kept under."""

    optimizer: str
    row: str


def _digest(row: Sequence[OpCall]) -> str:
    return hashlib.sha256("\n".join(call.key for call in row).encode()).hexdigest()[:24]


def _ratio(together: dict[str, float], alone: dict[str, Any], row: Sequence[OpCall]) -> dict[str, float]:
    """How many times as long ops take in a row as the sum of what they take alone; never less than that."""
    sums = {
        name: sum(alone[call.key].get(name, 0.0) for call in row if call.key in alone) for name in together
    }
    return {name: max(1.0, together[name] / sums[name]) if sums[name] else 1.0 for name in together}


def _measured(
    tables: Tables, site: Site, request: Request, known: Timings, names: _Names, timed: int
) -> Measured:
    machine = known.machine[names.optimizer]
    cluster = site.with_figures(cattrs.structure(machine["probe"], ProbeReport).cluster)
    return Measured(
        cluster=cluster,
        calibration=calibration(
            search_tables(tables.graph, cluster, request),
            {key: OpSeconds(**seconds) for key, seconds in known.ops.items()},
            cattrs.structure(machine["figures"], MachineFigures),
            OpSeconds(**known.rows[names.row]),
        ),
        timed=timed,
    )


def _run(order: Order, site: Site) -> dict[str, Any]:
    # Kept when a rank fails: the error names its log.
    folder = Path(tempfile.mkdtemp(prefix="syncline-measure-"))
    argument = write_order(order, folder)
    if site.emulation is None:
        launch_local(ENTRY, argument, ranks=site.ranks, logs=folder)
    else:
        launch_emulated(ENTRY, argument, emulation=site.emulation, logs=folder)
    results = read_results(folder)
    shutil.rmtree(folder)
    return results


def _circumstances(site: Site) -> Circumstances:
    return Circumstances(
        machine=f"{platform.node()}, {core_count()} cores",
        device=device_name(site.device),
        torch=torch.__version__,
        threads=threads_per_rank(site.ranks),
        ranks=site.ranks,
        links=site.links,
    )


def _parameter_shapes(graph: OpGraph) -> tuple[tuple[int, ...], ...]:
    shapes: list[tuple[int, ...]] = []
    total = 0
    for tensor in _trained(graph):
        if shapes and total + tensor.bytes > _OPTIMIZER_BYTES:
            continue
        shapes.append(tensor.shape)
        total += tensor.bytes
    return tuple(shapes)


def _trained(graph: OpGraph) -> Sequence[Any]:
    return [tensor for tensor in graph.parameters.values() if tensor.requires_grad]
