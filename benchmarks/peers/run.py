"""Other frameworks on the cells of a suite, as rows that `syncline report` merges with Syncline's own.

    python benchmarks/peers/run.py [SUITE.toml] [--only accelerate deepspeed:pipeline] -o FOLDER
    syncline report bench/survey-001 FOLDER -o both.html

Every peer gets the model, the weights, the data order, the optimizer and the budget of the suite's cells, for
each of its models, world sizes and seeds on this machine. One that is not installed, or cannot train a model,
is a row `skipped` with the reason. Frameworks are no dependency of Syncline: install those of interest, as in
`pip install accelerate lightning-fabric deepspeed torchft fairscale 'ray[train]'`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from frameworks import choose_peers
from peer import Peer
from peer_rank import Order
from torch import nn

from syncline.benchmark.cells import Cell, list_cells
from syncline.benchmark.curves import Course
from syncline.benchmark.demo import demo_suite
from syncline.benchmark.environment import Environment, look_around, write_environment
from syncline.benchmark.row import Row, append_row, brief
from syncline.benchmark.running import cell_config
from syncline.benchmark.steady import estimate, group_means
from syncline.benchmark.suite import LOCAL, Suite
from syncline.benchmark.suite_file import read_suite
from syncline.errors import ConfigError, RunFolderError, SynclineError
from syncline.strategies.protocol import StepOptions
from syncline.strategies.registry import parse_strategy
from syncline.training.config import TrainConfig
from syncline.training.measurements import Measurements
from syncline.training.summary import summarise
from syncline.workloads.load import load_workload

HERE = Path(__file__).parent


def main() -> None:
    """Run every peer in every place of the suite."""
    arguments = _parse()
    try:
        suite = demo_suite() if arguments.suite is None else read_suite(arguments.suite)
        peers = choose_peers(arguments.only)
        cells = _places(suite)
        for cell in cells:
            _check(suite, cell)
        _make_folder(arguments.output)
    except SynclineError as error:
        raise SystemExit(str(error)) from None
    environment = look_around()
    write_environment(environment, arguments.output)
    _set_variables()
    for cell in cells:
        for peer in peers:
            row = run_peer(suite, cell, peer, environment)
            append_row(row, arguments.output)
            print(f"{row.framework}:{row.label} x{row.world_size} seed {row.seed}: {_told(row)}", flush=True)


def run_peer(suite: Suite, cell: Cell, peer: Peer, environment: Environment) -> Row:
    """One peer's row."""
    config = _config(suite, cell)
    reason = peer.missing() or peer.refusal(_bare_model(config))
    if reason is not None:
        return _row(suite, cell, peer, environment, status="skipped", reason=reason)
    settings = {key: value for key, value in dataclasses.asdict(config).items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        order = Order(peer=peer.full_name, settings=settings, output=str(output))
        try:
            peer.launch(json.dumps(dataclasses.asdict(order)), cell.world_size, Path(folder) / "logs")
        except SynclineError as error:
            return _row(suite, cell, peer, environment, status="failed", reason=str(error))
        try:
            result = json.loads(output.read_text())
        except (OSError, ValueError) as error:
            reason = f"Its ranks ended without an error and without a result: {error}"
            return _row(suite, cell, peer, environment, status="failed", reason=reason)
    return _measured(suite, cell, peer, environment, result)


def _measured(suite: Suite, cell: Cell, peer: Peer, environment: Environment, result: dict[str, Any]) -> Row:
    lines = result["lines"]
    course = Course(
        samples=[line["samples"] for line in lines],
        losses=[line["loss"] for line in lines],
        step_s=[line["step_s"] for line in lines],
        inspected=[False] * len(lines),
    )
    measured = Measurements(
        global_batch=cell.batch, target_loss=suite.target_loss, eval_loss=result["eval_loss"]
    )
    for loss, step_s in zip(course.losses, course.step_s, strict=True):
        measured.add_step(loss=loss, step_s=step_s)
    row = _row(
        suite,
        cell,
        peer,
        environment,
        status="ok",
        steps=len(lines),
        wall_s=result["wall_s"],
        measurements=measured,
        peak_memory_bytes=result["peak_memory_bytes"],
        sent_bytes=result["sent_bytes"],
    )
    groups = group_means(course.steady_step_s(), parse_strategy(peer.kin))
    step = estimate(groups)
    assert step is not None, "a suite has steps to measure"
    low, high = step.interval or (None, None)
    return dataclasses.replace(
        row,
        group_step_s=groups,
        sustained_step_s=step.value,
        step_s_low=low,
        step_s_high=high,
        sustained_samples_per_s=cell.batch / step.value,
        device_s_to_target=None if row.time_to_target_s is None else row.time_to_target_s * row.devices,
        curve=course.curve(step.value),
    )


def _row(
    suite: Suite,
    cell: Cell,
    peer: Peer,
    environment: Environment,
    *,
    steps: int = 0,
    wall_s: float = 0.0,
    **known: Any,
) -> Row:
    """A row of the figures that are known, as `summarise` takes them."""
    config = dataclasses.replace(_config(suite, cell), strategy=peer.kin)
    summary = summarise(config, world_size=cell.world_size, steps=steps, wall_s=wall_s, **known)
    return Row(
        **dataclasses.asdict(summary),
        cell=f"{peer.framework}-{peer.name}-{cell.name}",
        label=peer.name,
        framework=peer.framework,
        seed=cell.seed,
        batch=cell.batch,
        scaling=suite.scaling,
        target_loss=suite.target_loss,
        devices=environment.devices(cell.world_size),
    )


def _check(suite: Suite, cell: Cell) -> None:
    """Refuse what would not be the same for all."""
    config = _config(suite, cell)
    if config.step_options != StepOptions():
        raise ConfigError(
            "Peers train in fp32, with one micro-batch a step, without clipping and recomputing.\n"
            "Leave precision, accumulate, clip_norm and activation_checkpointing out of the suite."
        )
    parse_strategy(cell.strategy).check(world_size=cell.world_size, global_batch=cell.batch, accumulate=1)


def _config(suite: Suite, cell: Cell) -> TrainConfig:
    steps = suite.budget.steps_of(cell.batch)
    if steps is None:
        raise ConfigError("Peers need a budget in steps or samples, for no short run tells how many fit.")
    return dataclasses.replace(cell_config(suite, cell, steps=steps), inspect=0)


def _bare_model(config: TrainConfig) -> nn.Module:
    """The model without weights."""
    workload = load_workload(
        config.model, data=config.data, seed=config.seed, input=config.input, device="meta"
    )
    return workload.build_model("meta")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise RunFolderError(
            f"{path} exists, and one benchmark never overwrites another.\nGive another folder with -o."
        ) from None
    except OSError as error:
        raise RunFolderError(f"{path} cannot be made: {error}") from None


def _set_variables() -> None:
    # Ranks import their entry from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # torchft tells of every vote.
    os.environ.setdefault("RUST_LOG", "error")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def _places(suite: Suite) -> list[Cell]:
    """One cell for each model, world size and seed, as data parallelism would run it."""
    narrowed = dataclasses.replace(suite, strategies=("data",), clusters=(LOCAL,))
    return list_cells(narrowed)


def _told(row: Row) -> str:
    if row.sustained_step_s is None:
        return f"{row.status}: {brief(row.reason)}"
    return f"{row.sustained_step_s * 1e3:.1f} ms/step, loss {row.final_loss:.4f}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("suite", type=Path, nargs="?", help="by default the demo's")
    parser.add_argument("--only", nargs="*", default=[], help="some frameworks, or framework:way")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder of the rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
