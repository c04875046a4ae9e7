"""`syncline probe`."""

from __future__ import annotations

import json as json_module
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from syncline.cli.probe_rank import ENTRY, ProbeRequest, measure
from syncline.cli.units import show_bytes, show_seconds
from syncline.cluster.cluster_file import save_cluster
from syncline.cluster.machine import core_count
from syncline.cluster.probe_report import ProbeReport
from syncline.cluster.rank import current_rank, launched_by_torchrun
from syncline.errors import ClusterError, ConfigError
from syncline.launch.emulated import launch_emulated, parse_emulation
from syncline.launch.local import launch_local
from syncline.launch.slurm import apply_slurm_variables
from syncline.launch.stopping import LaunchStopped

# Work of others beyond this share of the cores shows in the figures.
_BUSY_LOAD = 0.5
# A fit this far from the times it comes from is worth a word.
_POOR_FIT = 0.30


def probe(
    *,
    ranks: int = 2,
    emulate: str | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("cluster.toml"),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure devices and links on live ranks, and write them as a cluster to plan for.

    All ranks work at the same time, so the figures are what one rank gets in training. Under torchrun
    or srun it measures the ranks that were started.

    Examples:

      syncline probe -o cluster.toml

      syncline probe --emulate 2x2@200mbit -o slow.toml

      torchrun --nnodes 2 --nproc-per-node 8 ... -m syncline probe -o cluster.toml

    Parameters
    ----------
    ranks:
        How many ranks to start on this machine.
    emulate:
        Start the ranks on emulated nodes instead: `2x2@200mbit` is 2 nodes of 2 ranks. Needs root and
        iproute2.
    quick:
        Take about a second for figures of the right order, not some fifteen for good ones.
    output:
        The file to write.
    json:
        Print all measurements as one JSON document on stdout.
    """
    _check_output(output)
    _warn_if_busy()
    apply_slurm_variables()
    try:
        report = _measure(ranks=ranks, emulate=emulate, quick=quick, name=output.stem)
    except LaunchStopped as stopped:
        return 128 + stopped.signal_number
    if launched_by_torchrun() and not current_rank().is_first:
        return 0
    save_cluster(report.cluster, output)
    if json:
        print(json_module.dumps({"output": str(output), **report.as_dict()}, indent=2))
    else:
        show_report(report, Console(stderr=True))
        print(output)
    return 0


def show_report(report: ProbeReport, console: Console) -> None:
    """A table of the device, a table of the levels, and a warning where a fit is poor."""
    device = report.cluster.device
    figures = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    figures.add_row("device", device.name)
    figures.add_row("float32 products", f"{device.flops_per_s / 1e9:.1f} GFLOP/s")
    if device.flops_per_s_bf16 is not None:
        figures.add_row("bfloat16 products", f"{device.flops_per_s_bf16 / 1e9:.1f} GFLOP/s")
    figures.add_row("memory rate", f"{show_bytes(device.memory_bytes_per_s)}/s")
    figures.add_row("memory a rank", show_bytes(device.memory_bytes))
    figures.add_row("measured in", show_seconds(report.probe_s))
    console.print(figures)
    if report.links:
        console.print(_level_table(report))
    for link in report.links:
        for kind, error in link.fit.error_by_kind.items():
            if error > _POOR_FIT:
                console.print(f"[yellow]{kind} ({link.level}) is typically {error:.0%} off these figures[/]")


def _level_table(report: ProbeReport) -> Table:
    table = Table("level", "size", "a rank sends", "latency", "against textbook", "fit off by")
    for level, link in zip(report.cluster.levels, report.links, strict=True):
        table.add_row(
            level.name,
            str(level.size),
            f"{show_bytes(level.bytes_per_s)}/s",
            show_seconds(level.latency_s),
            "\n".join(
                f"{kind} ×{factor:.3g}" for kind, factor in asdict(level.slowdown).items() if factor != 1
            ),
            f"{link.fit.error:.0%}",
        )
    return table


def _measure(*, ranks: int, emulate: str | None, quick: bool, name: str) -> ProbeReport:
    if launched_by_torchrun():
        return measure(name=name, quick=quick)
    if ranks < 1:
        raise ConfigError(f"{ranks} ranks cannot be measured: give 1 or more.")
    emulation = None if emulate is None else parse_emulation(emulate)
    # Kept when a rank fails: the error names its log.
    folder = Path(tempfile.mkdtemp(prefix="syncline-probe-"))
    request = ProbeRequest(name=name, quick=quick, report=str(folder / "report.json"))
    if emulation is None:
        launch_local(ENTRY, request.as_argument(), ranks=ranks, logs=folder)
    else:
        launch_emulated(ENTRY, request.as_argument(), emulation=emulation, logs=folder, max_restarts=0)
    report = ProbeReport.from_json(Path(request.report).read_text(encoding="utf-8"))
    shutil.rmtree(folder)
    return report


def _check_output(output: Path) -> None:
    """Refuse what cannot be written before anything is measured."""
    if output.is_dir():
        raise ClusterError(f"{output} is a folder. Give a file, such as {output / 'cluster.toml'}.")
    if not output.parent.is_dir():
        raise ClusterError(f"There is no folder {output.parent} for {output.name}. Make it first.")


def _warn_if_busy() -> None:
    """Other work on the machine makes figures lower than they are."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > _BUSY_LOAD * core_count() and current_rank().is_first:
        print(
            f"probe: this machine is busy (load {load:.1f} on {core_count()} cores); figures will be too low",
            file=sys.stderr,
            flush=True,
        )
