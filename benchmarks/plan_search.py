"""Times planning in Syncline's own cost model: capture, tables and search, on one core.

    python benchmarks/plan_search.py [--rounds N] [--only CASE ...] [-o FILE]

The cases are the graphs of PaSE's evaluation, and the built-in models beside them, on 64 devices
(`gtx1080ti-pcie:8`), and llama-70b on 1024 (`h100-dgx:128`). Every round is a process of its own, so that
nothing is warm but the file cache; importing torch does not count. *Tables* and *search* are what planning
does after the capture, without pricing the strategies to compare with. Wall time and processor time are both
given: on a busy machine they differ.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from record import ROOT, own_peak_bytes, write_record
from syncline.cluster.presets import cluster_from
from syncline.graph import OpGraph, capture_training
from syncline.planning.axes import search_axes
from syncline.planning.planner import exposed_share, known_strategies
from syncline.planning.search import Limits, Search
from syncline.planning.table_builder import build_tables
from syncline.workloads.load import load_workload

CASES: dict[str, tuple[str, int, str]] = {
    "alexnet-p64": ("alexnet", 128, "gtx1080ti-pcie:8"),
    "inception3-p64": ("inception3", 128, "gtx1080ti-pcie:8"),
    "rnnlm-p64": ("rnnlm", 64, "gtx1080ti-pcie:8"),
    "transformer-p64": ("transformer", 64, "gtx1080ti-pcie:8"),
    "vgg16-p64": ("vgg16", 128, "gtx1080ti-pcie:8"),
    "resnet50-p64": ("resnet50", 128, "gtx1080ti-pcie:8"),
    "gpt2-small-p64": ("gpt2-small", 64, "gtx1080ti-pcie:8"),
    "llama-70b-p1024": ("llama-70b", 1024, "h100-dgx:128"),
}
PHASES = ("capture", "tables", "search")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def captured(name: str, batch: int) -> OpGraph:
    """The training step of a built-in model, without memory for its weights."""
    workload = load_workload(name)
    spec = workload.input
    if spec is None:
        raise SystemExit(f"{name} does not say what it takes")
    ids = [torch.empty(batch, length, dtype=torch.long, device="meta") for length in spec.shape]
    if spec.kind == "image":
        inputs: Any = torch.empty(batch, *spec.shape, device="meta")
        targets = torch.empty(batch, dtype=torch.long, device="meta")
    else:
        inputs, targets = (tuple(ids) if len(ids) > 1 else ids[0]), ids[-1]
    return capture_training(workload.build_model("meta"), workload.compute_loss, (inputs, targets))


class Clock:
    """Wall and processor seconds of the phases of one run."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}
        self._began = time.perf_counter(), time.process_time()

    def lap(self, phase: str) -> None:
        """The phase that ends now."""
        now = time.perf_counter(), time.process_time()
        self.wall_s[phase], self.cpu_s[phase] = now[0] - self._began[0], now[1] - self._began[1]
        self._began = now


def run_once(case: str) -> dict[str, Any]:
    """One plan, phase by phase as `make_plan` goes."""
    name, batch, cluster_name = CASES[case]
    cluster = cluster_from(cluster_name)
    clock = Clock()
    graph = captured(name, batch)
    clock.lap("capture")
    axes = search_axes(cluster)
    known = known_strategies(graph, axes)
    extra = {op.id: [shardings[op.id] for _, shardings in known] for op in graph.ops}
    tables = build_tables(graph, axes, extra=extra)
    clock.lap("tables")
    search = Search(tables)
    search.exposed_share = exposed_share(search, known[0][1])
    found, _ = search.fastest_within(cluster.device.memory_bytes, Limits.none())
    clock.lap("search")
    if found is None:
        raise SystemExit(f"{case}: nothing fits")
    return {
        "wall_s": clock.wall_s,
        "cpu_s": clock.cpu_s,
        "peak_bytes": own_peak_bytes(),
        "ops": len(graph.ops),
        "nodes": len(tables.nodes),
        "choices": sum(node.count for node in tables.nodes),
        "step_s": found.prediction.step_s,
    }


def measure(case: str, rounds: int) -> dict[str, Any]:
    """The result row of one case: medians over processes."""
    runs = []
    for _ in range(rounds):
        command = [sys.executable, __file__, "--run", case]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_THREAD}
        )
        runs.append(json.loads(done.stdout))
    row: dict[str, Any] = {"case": case, "rounds": rounds}
    for kind in ("wall_s", "cpu_s"):
        medians = {phase: statistics.median(run[kind][phase] for run in runs) for phase in PHASES}
        medians["planning"] = statistics.median(run[kind]["tables"] + run[kind]["search"] for run in runs)
        medians["with_capture"] = statistics.median(sum(run[kind].values()) for run in runs)
        row[kind] = medians
    row["peak_bytes"] = max(run["peak_bytes"] for run in runs)
    return {**row, **{key: runs[0][key] for key in ("ops", "nodes", "choices", "step_s")}}


def show(row: dict[str, Any]) -> str:
    """One line of the printed table."""
    wall, cpu = row["wall_s"], row["cpu_s"]
    return (
        f"{row['case']:<18} {wall['capture']:9.2f} {wall['tables']:8.2f} {wall['search']:8.2f} "
        f"{wall['planning']:10.2f} {cpu['planning']:9.2f} {wall['with_capture']:12.2f} "
        f"{cpu['with_capture']:9.2f} {row['peak_bytes'] / 1e6:8.0f}"
    )


def main() -> None:
    """Runs the benchmark, prints a table and writes the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how many processes plan each case")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), help="cases to run")
    parser.add_argument("--run", choices=list(CASES), help=argparse.SUPPRESS)
    output = ROOT / "benchmarks" / "results" / "plan_search.json"
    parser.add_argument("-o", "--output", type=Path, default=output)
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    if given.run:
        print(json.dumps(run_once(given.run)))
        return
    print(
        "case                 capture   tables   search   planning   its CPU with capture   its CPU  peak MB"
    )
    rows = []
    for case in given.only:
        rows.append(measure(case, given.rounds))
        print(show(rows[-1]), flush=True)
    write_record(given.output, {"rows": rows})


if __name__ == "__main__":
    main()
