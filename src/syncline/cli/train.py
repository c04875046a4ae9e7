"""`syncline train`."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from syncline.cli.units import show_bytes, show_seconds
from syncline.errors import ConfigError
from syncline.launch.slurm import apply_slurm_variables
from syncline.training.config import TrainConfig
from syncline.training.config_file import build_config, read_settings
from syncline.training.run_folder import CONFIG_FILE, check_run
from syncline.training.start import Ended, start_training
from syncline.training.summary import Summary

FLAG = Parameter(negative="", show_default=False)


def train(
    model: str | None = None,
    /,
    *,
    strategy: str | None = None,
    ranks: int | None = None,
    emulate: str | None = None,
    data: str | None = None,
    batch: int | None = None,
    steps: int | None = None,
    plan: Path | None = None,
    resume: Annotated[bool, FLAG] = False,
    max_restarts: int | None = None,
    config: Path | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Train a model and keep everything about it in a run's folder.

    Examples:

      syncline train gpt2-tiny

      syncline train resnet18:size=tiny --strategy sharded:group=2 --ranks 4 --steps 50

      syncline train gpt2-tiny --emulate 2x2@200mbit

      syncline train gpt2-tiny --strategy planned --ranks 4

      syncline train --resume -o runs/gpt2-tiny-data-001 --steps 500

      torchrun --nproc-per-node 4 -m syncline train my_package.my_module:build

    Parameters
    ----------
    model:
        A built-in model (`name` or `name:key=value,...`), or `package.module:function` that returns a
        module or a Workload. Can be left out with --resume.
    strategy:
        How to train: `name` or `name:key=value,...`; `syncline doctor` lists them. Default: data.
    ranks:
        How many ranks to start. Default: one for each accelerator, or 2 on a CPU (1 for `single`).
    emulate:
        Start the ranks on emulated nodes with slow links between: `2x2@200mbit` is 2 nodes of 2 ranks.
        Needs root and iproute2.
    data:
        stdlib-text, text:PATH, digits, fashion-mnist[:PATH], cifar10:PATH or synthetic. Default: what
        fits the model.
    batch:
        Global batch size, over all ranks. Default: 16.
    steps:
        How many steps to train. Default: 100.
    plan:
        Train as this plan.json says, with the strategy planned. Default: planned searches for a plan itself.
    resume:
        Go on with the run in the folder given with -o, from its newest checkpoint.
    max_restarts:
        Start again from the last checkpoint when a rank fails, at most so many times. Default: 0.
    config:
        A TOML file with these and all other settings (optimizer, schedule, checkpoint, evaluation, seed,
        accumulate, precision, clip_norm, activation_checkpointing, ...); flags win over it.
        Every run's folder has a complete one, config.toml.
    output:
        The run's folder. Default: a new one below `runs`.
    json:
        Print the summary as one JSON document on stdout.
    """
    apply_slurm_variables()
    flags = {
        "model": model,
        "strategy": strategy,
        "ranks": ranks,
        "emulate": emulate,
        "data": data,
        "batch": batch,
        "steps": steps,
        "plan": str(plan) if plan is not None else None,
        "max_restarts": max_restarts,
    }
    if resume and output is None:
        raise ConfigError(
            "--resume needs the run's folder.\nGive it with -o, such as -o runs/gpt2-tiny-data-001."
        )
    resolved = resolve_config(flags, config, resumed=output if resume else None)
    # What the user's own code prints has no place beside the summary.
    with contextlib.redirect_stdout(sys.stderr):
        ended = start_training(resolved, output, resume=resume)
    if ended.summary is not None:
        show_ending(ended, ended.summary, as_json=json)
    return 128 + ended.signal_number if ended.signal_number else 0


def resolve_config(flags: dict[str, Any], path: Path | None, resumed: Path | None) -> TrainConfig:
    """Settings from, in rising order: the defaults, the resumed run, the file, the flags."""
    settings: dict[str, Any] = {}
    if resumed is not None:
        check_run(resumed)
        settings = read_settings(resumed / CONFIG_FILE)
        # The run's folder has its own copy, which is planned anew where another number of ranks goes on.
        settings.pop("plan", None)
    if path is not None:
        from_file = read_settings(path)
        # On its own first, so that what is wrong in it is not blamed on the flags.
        build_config({"model": "any"} | from_file, str(path))
        settings = _overlay(settings, from_file)
    settings = _overlay(settings, {key: value for key, value in flags.items() if value is not None})
    if "model" not in settings:
        raise ConfigError(
            "Which model? Name one, such as: syncline train gpt2-tiny\nSee: syncline train --help"
        )
    if "plan" in settings:
        settings.setdefault("strategy", "planned")
    return build_config(settings, "the command line")


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both together, `above` winning; where it says how many ranks, it says so with both keys."""
    ranks = {"ranks", "emulate"}
    kept = {key: value for key, value in below.items() if not (key in ranks and ranks & above.keys())}
    return kept | above


def show_ending(ended: Ended, summary: Summary, *, as_json: bool) -> None:
    """Say what the run came to: a small table on stderr, or JSON on stdout."""
    if as_json:
        print(json_module.dumps(asdict(summary), indent=2))
    else:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in _rows(summary):
            table.add_row(name, value)
        Console(stderr=True).print(table)
    if summary.status == "stopped":
        print(_how_to_go_on(ended.folder, summary), file=sys.stderr)
    if not as_json:
        print(ended.folder)


def _how_to_go_on(folder: Path, summary: Summary) -> str:
    if summary.steps == 0:
        return f"{summary.reason}, before there was a checkpoint to go on from"
    return f"{summary.reason}; go on with: syncline train --resume -o {folder}"


def _rows(summary: Summary) -> list[tuple[str, str]]:
    memory = max(summary.peak_memory_bytes) if summary.peak_memory_bytes else None
    sent = summary.sent_bytes or {}
    ranks = f"{summary.world_size} rank{'s'[: summary.world_size > 1]}"
    exactness = "exact" if summary.exact else "inexact"
    exposed_s = summary.exposed_comm_s
    waiting = None if exposed_s is None else f"{show_seconds(exposed_s)} of a step, on average"
    figures = [
        ("strategy", f"{summary.strategy} ({exactness}), {ranks}, {summary.cluster}"),
        ("loss", None if summary.final_loss is None else f"{summary.final_loss:.4f}"),
        ("evaluation loss", None if summary.eval_loss is None else f"{summary.eval_loss:.4f}"),
        ("step", None if summary.median_step_s is None else show_seconds(summary.median_step_s)),
        ("waiting for nodes", waiting),
        ("speed", None if summary.samples_per_s is None else f"{summary.samples_per_s:.1f} samples/s"),
        ("peak memory a rank", None if memory is None else show_bytes(memory)),
        *((f"sent, {level} level", show_bytes(count)) for level, count in sent.items() if count),
    ]
    return [(name, value) for name, value in figures if value is not None]
