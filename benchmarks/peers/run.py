"""Other frameworks on the cells of a suite, as rows that `syncline report` merges with Syncline's own.

    python benchmarks/peers/run.py [SUITE.toml] [--only accelerate deepspeed] -o FOLDER
    syncline report bench/survey-001 FOLDER -o both.html

Every peer gets the model, the weights, the data order, the optimizer and the budget of the suite's cells, for
each of its models, world sizes and seeds on this machine. One that is not installed is a row `skipped` with
the reason. Frameworks are no dependency of Syncline: install those of interest, such as
`pip install accelerate lightning-fabric deepspeed torchft`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from frameworks import PEERS, Peer
from peer_rank import Order

from syncline.benchmark.cells import Cell, list_cells
from syncline.benchmark.curves import Course
from syncline.benchmark.demo import demo_suite
from syncline.benchmark.environment import Environment, look_around, write_environment
from syncline.benchmark.row import Row, append_row
from syncline.benchmark.running import cell_config
from syncline.benchmark.steady import estimate, group_means
from syncline.benchmark.suite import LOCAL, Suite
from syncline.benchmark.suite_file import read_suite
from syncline.errors import SynclineError
from syncline.launch.local import launch_local
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig
from syncline.training.summary import Status, summarise

HERE = Path(__file__).parent


def main() -> None:
    """Run every peer in every place of the suite."""
    arguments = _parse()
    suite = demo_suite() if arguments.suite is None else read_suite(arguments.suite)
    arguments.output.mkdir(parents=True)
    environment = look_around()
    write_environment(environment, arguments.output)
    # Ranks import their entry from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # torchft tells of every vote.
    os.environ.setdefault("RUST_LOG", "error")
    for cell in _places(suite):
        for peer in PEERS.values():
            if arguments.only and peer.framework not in arguments.only:
                continue
            row = run_peer(suite, cell, peer, environment)
            append_row(row, arguments.output)
            print(f"{row.framework}:{row.label} x{row.world_size} seed {row.seed}: {_told(row)}", flush=True)


def run_peer(suite: Suite, cell: Cell, peer: Peer, environment: Environment) -> Row:
    """One peer's row."""
    reason = peer.missing()
    if reason is not None:
        return _row(suite, cell, peer.framework, peer.name, environment, "skipped", reason)
    config = _config(suite, cell)
    settings = {key: value for key, value in dataclasses.asdict(config).items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        order = Order(peer=f"{peer.framework}:{peer.name}", settings=settings, output=str(output))
        argument = json.dumps(dataclasses.asdict(order))
        try:
            launch_local("peer_rank:run", argument, ranks=cell.world_size, logs=Path(folder) / "logs")
        except SynclineError as error:
            return _row(suite, cell, peer.framework, peer.name, environment, "failed", str(error))
        result = json.loads(output.read_text())
    return _measured(suite, cell, peer, environment, result)


def _measured(suite: Suite, cell: Cell, peer: Peer, environment: Environment, result: dict[str, Any]) -> Row:
    lines = result["lines"]
    course = Course(
        samples=[line["samples"] for line in lines],
        losses=[line["loss"] for line in lines],
        step_s=[line["step_s"] for line in lines],
        inspected=[False] * len(lines),
    )
    groups = group_means(course.steady_step_s(), parse_strategy("data"))
    step = estimate(groups)
    row = _row(suite, cell, peer.framework, peer.name, environment, "ok", None)
    usual_s = step.value if step else 0.0
    return dataclasses.replace(
        row,
        steps=len(lines),
        samples=course.samples[-1],
        final_loss=course.losses[-1],
        eval_loss=result["eval_loss"],
        peak_memory_bytes=result["peak_memory_bytes"],
        sent_bytes=result["sent_bytes"],
        group_step_s=groups,
        sustained_step_s=usual_s,
        sustained_samples_per_s=cell.batch / usual_s if usual_s else None,
        curve=course.curve(usual_s),
    )


def _row(
    suite: Suite,
    cell: Cell,
    framework: str,
    label: str,
    environment: Environment,
    status: Status,
    reason: str | None,
) -> Row:
    summary = summarise(
        _config(suite, cell), world_size=cell.world_size, steps=0, wall_s=0.0, status=status, reason=reason
    )
    return Row(
        **dataclasses.asdict(summary),
        cell=f"{framework}-{label}-{cell.name}",
        label=label,
        framework=framework,
        seed=cell.seed,
        batch=cell.batch,
        scaling=suite.scaling,
        target_loss=suite.target_loss,
        devices=environment.devices(cell.world_size),
    )


def _config(suite: Suite, cell: Cell) -> TrainConfig:
    steps = suite.budget.steps_of(cell.batch)
    if steps is None:
        raise SystemExit("Peers need a budget in steps or samples.")
    return dataclasses.replace(cell_config(suite, cell, steps=steps), inspect=0)


def _places(suite: Suite) -> list[Cell]:
    """One cell for each model, world size and seed, as data parallelism would run it."""
    narrowed = dataclasses.replace(suite, strategies=("data",), clusters=(LOCAL,))
    return list_cells(narrowed)


def _told(row: Row) -> str:
    if row.sustained_step_s is None:
        return f"{row.status}: {(row.reason or '').splitlines()[0]}"
    return f"{row.sustained_step_s * 1e3:.1f} ms/step, loss {row.final_loss:.4f}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite", type=Path, nargs="?", help="by default the demo's")
    parser.add_argument("--only", nargs="*", default=[], help="some of the frameworks")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder of the rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
