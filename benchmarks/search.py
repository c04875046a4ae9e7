"""Times the exact search against a straightforward elimination, on the cost tables of PaSE's evaluation.

    python benchmarks/search.py [--tables FOLDER] [--rounds N] [--only NAME ...] [-o FILE]

Both solvers run on one core and take turns, so that a busy machine slows both alike. A run counts from the
arrays to the choice, all preparation included; reading the file does not count. Peak memory is that of a
process of its own for each solver and table. The reference is what one would write first: one dense
broadcast sum and argmin a node, integer back-pointers, nodes in min-degree order; no layout classes, no
pruning, no folding.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from record import own_peak_bytes, write_record
from syncline.planning.elimination import evaluate, solve

ROOT = Path(__file__).parents[1]
TABLES = ROOT / ".." / "shared" / "data" / "pase"
NAMES = [
    f"{graph}-p{devices}"
    for graph in ("alexnet", "rnnlm", "inception3", "transformer")
    for devices in (8, 32)
]

Costs = NDArray[np.float64]
Problem = tuple[list[Costs], dict[tuple[int, int], Costs]]
Answer = tuple[float, list[int]]
Factor = tuple[tuple[int, ...], Costs]


def load(folder: Path, name: str) -> Problem:
    """The node and edge costs of one table; edges with the same costs share one array."""
    with np.load(folder / f"{name}.npz") as stored:
        arrays = dict(stored)
    node_costs = [arrays[f"node_costs_{number}"] for number in arrays["nodes"]]
    edge_costs = {(u, v): arrays[f"edge_costs_{number}"] for u, v, number in arrays["edges"].tolist()}
    return node_costs, edge_costs


def ours(problem: Problem) -> Answer:
    """The search that is measured."""
    solution = solve(*problem)
    return solution.value, list(solution.choice)


def reference(problem: Problem) -> Answer:
    """Straightforward dense elimination in min-degree order."""
    node_costs, edge_costs = problem
    neighbours: list[set[int]] = [set() for _ in node_costs]
    for u, v in edge_costs:
        neighbours[u].add(v)
        neighbours[v].add(u)
    factors: list[Factor] = [((v,), costs) for v, costs in enumerate(node_costs)]
    factors += edge_costs.items()
    left = set(range(len(node_costs)))
    value, pointers = 0.0, []
    while left:
        node = min(left, key=lambda v: (len(neighbours[v]), v))
        scope = sorted(neighbours[node])
        table = _table([*scope, node], [factor for factor in factors if node in factor[0]], node_costs)
        factors = [factor for factor in factors if node not in factor[0]]
        best = table.argmin(axis=-1)
        message = np.take_along_axis(table, best[..., None], axis=-1)[..., 0]
        pointers.append((node, scope, best.astype(np.int32)))
        if scope:
            factors.append((tuple(scope), message))
        else:
            value += float(message)
        for other in scope:
            neighbours[other] |= neighbours[node]
            neighbours[other] -= {other, node}
        left.remove(node)
    choice = [0] * len(node_costs)
    for node, scope, best in reversed(pointers):
        choice[node] = int(best[tuple(choice[other] for other in scope)])
    return value, choice


def _table(axes: list[int], factors: list[Factor], node_costs: list[Costs]) -> Costs:
    table = np.zeros([len(node_costs[v]) for v in axes])
    for nodes, costs in factors:
        order = sorted(range(len(nodes)), key=lambda axis: axes.index(nodes[axis]))
        shape = [len(node_costs[v]) if v in nodes else 1 for v in axes]
        table += costs.transpose(order).reshape(shape)
    return table


SOLVERS: dict[str, Callable[[Problem], Answer]] = {"ours": ours, "reference": reference}


def measure(folder: Path, name: str, rounds: int) -> dict[str, object]:
    """The result row of one table."""
    problem = load(folder, name)
    seconds: dict[str, list[float]] = {solver: [] for solver in SOLVERS}
    cpu: dict[str, list[float]] = {solver: [] for solver in SOLVERS}
    answers: dict[str, Answer] = {}
    for _ in range(rounds):
        for solver, run in SOLVERS.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            answers[solver] = run(problem)
            cpu[solver].append(time.process_time() - cpu_began)
            seconds[solver].append(time.perf_counter() - began)
    for value, choice in answers.values():
        if not np.isclose(value, evaluate(*problem, choice), rtol=1e-9) or not np.isclose(
            value, answers["ours"][0], rtol=1e-9
        ):
            raise SystemExit(f"{name}: the solvers disagree: {answers}")
    median = {solver: statistics.median(times) for solver, times in seconds.items()}
    cpu_median = {solver: statistics.median(times) for solver, times in cpu.items()}
    return {
        "table": name,
        "optimum": answers["ours"][0],
        "rounds": rounds,
        "median_s": median,
        "median_cpu_s": cpu_median,
        "ratio": median["reference"] / median["ours"],
        "cpu_ratio": cpu_median["reference"] / cpu_median["ours"],
        "peak_bytes": {solver: peak_bytes(folder, name, solver) for solver in SOLVERS},
        "before_solving_bytes": peak_bytes(folder, name, "nothing"),
    }


def peak_bytes(folder: Path, name: str, solver: str) -> int:
    """The peak resident memory of a process that loads the table and runs the solver once."""
    command = [sys.executable, __file__, "--tables", str(folder), "--only", name, "--peak-of", solver]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def show(row: dict[str, object]) -> str:
    """One line of the printed table."""
    median, peak = row["median_s"], row["peak_bytes"]
    assert isinstance(median, dict)
    assert isinstance(peak, dict)
    return (
        f"{row['table']:<16} {median['ours'] * 1e3:9.1f} {median['reference'] * 1e3:12.1f} "
        f"{row['ratio']:7.1f} {row['cpu_ratio']:9.1f} "
        f"{peak['ours'] / 1e6:8.0f} {peak['reference'] / 1e6:13.0f}"
    )


def main() -> None:
    """Runs the benchmark, prints a table and writes the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=TABLES, help="the folder of the .npz files")
    parser.add_argument("--rounds", type=int, default=7, help="how often each solver runs on each table")
    parser.add_argument("--only", nargs="+", default=NAMES, help="the tables to run")
    parser.add_argument("--peak-of", choices=[*SOLVERS, "nothing"], help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "search.json")
    given = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if given.peak_of:
        SOLVERS.get(given.peak_of, lambda problem: None)(load(given.tables, given.only[0]))
        print(own_peak_bytes())
        return
    print("table              ours ms reference ms   ratio cpu ratio  peak MB  reference MB")
    rows = []
    for name in given.only:
        rows.append(measure(given.tables, name, given.rounds))
        print(show(rows[-1]), flush=True)
    write_record(given.output, {"rows": rows})
    print(f"Written to {given.output}")


if __name__ == "__main__":
    main()
