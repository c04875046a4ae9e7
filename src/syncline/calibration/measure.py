"""From a graph and a cluster that is here to measured figures: what to time, timing it, and keeping it."""

from __future__ import annotations

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
from syncline.planning.calibration import Calibration, MachineFigures, OpSeconds
from syncline.planning.measuring import calibration, calls_to_time
from syncline.planning.planner import Request, search_tables

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
    wanted = calls_to_time(search_tables(graph, site.cluster, request))
    missing = tuple(call for call in wanted if call.key not in known.ops)
    optimizer = f"state {request.state_factor:g}"
    if missing or optimizer not in known.machine:
        order = Order(
            calls=missing,
            machine=optimizer not in known.machine,
            parameter_shapes=_parameter_shapes(graph),
            state_factor=request.state_factor,
            quick=quick,
        )
        results = _run(order, site)
        known.ops |= results["ops"]
        if order.machine:
            known.machine[optimizer] = {"figures": results["machine"], "probe": results["probe"]}
        if not quick:
            write_timings(folder, circumstances, known)
    return _measured(graph, site, request, known, known.machine[optimizer], len(missing))


def _measured(
    graph: OpGraph, site: Site, request: Request, known: Timings, machine: dict[str, Any], timed: int
) -> Measured:
    cluster = site.with_figures(cattrs.structure(machine["probe"], ProbeReport).cluster)
    return Measured(
        cluster=cluster,
        calibration=calibration(
            search_tables(graph, cluster, request),
            {key: OpSeconds(**seconds) for key, seconds in known.ops.items()},
            cattrs.structure(machine["figures"], MachineFigures),
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
