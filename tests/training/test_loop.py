"""Whole runs on real ranks: exact resumption, stopping, diverging, and what lies in the folder."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from syncline.errors import CheckpointError, NonFiniteLossError
from syncline.training import loop as loop_module
from syncline.training.checkpoint_info import list_checkpoints
from syncline.training.config import (
    CheckpointConfig,
    EvaluationConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from syncline.training.config_file import write_config
from syncline.training.export import read_weights
from syncline.training.inspection.inspector import Inspector
from syncline.training.rank import train_rank
from syncline.training.summary import Summary, read_summary

STEPS = 8


def config(strategy: str, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "model": "gpt2-tiny:dropout=0.1",
        "strategy": strategy,
        "batch": 8,
        "steps": STEPS,
        "data": "stdlib-text",
        "schedule": ScheduleConfig(shape="cosine", warmup_steps=3),
        "evaluation": EvaluationConfig(batches=1),
    }
    return TrainConfig(**(settings | changes))


def run(config: TrainConfig, folder: Path, resume: bool = False) -> None:
    train_rank(config, folder, resume=resume)


def run_and_stop(config: TrainConfig, folder: Path, after: int, stopper: int) -> None:
    """Train until one rank gets SIGTERM in the middle of a step."""
    from syncline.cluster.rank import current_rank

    original = loop_module.Loop.train_once

    def train_once(loop: loop_module.Loop) -> None:
        if loop.done == after and current_rank().index == stopper:
            signal.raise_signal(signal.SIGTERM)
        original(loop)

    loop_module.Loop.train_once = train_once  # type: ignore[method-assign]
    try:
        train_rank(config, folder, resume=False)
    finally:
        loop_module.Loop.train_once = original  # type: ignore[method-assign]


HOARDED_BYTES = 400 << 20


def run_and_hoard(config: TrainConfig, folder: Path) -> None:
    """Train with an inspector that leaves much behind in the process, as a profiler may."""
    original, hoard = Inspector.around, []

    @contextmanager
    def around(inspector: Inspector, number: int, step: Any) -> Iterator[None]:
        with original(inspector, number, step):
            if inspector.disturbs(number) and not hoard:
                hoard.append(torch.ones(HOARDED_BYTES, dtype=torch.uint8))
            yield

    Inspector.around = around  # type: ignore[method-assign]
    try:
        train_rank(config, folder, resume=False)
    finally:
        Inspector.around = original  # type: ignore[method-assign]
    assert hoard


def new_folder(path: Path, config: TrainConfig) -> Path:
    path.mkdir()
    write_config(config, path / "config.toml")
    return path


def assert_identical(given: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert given.keys() == wanted.keys()
    for name, tensor in given.items():
        assert torch.equal(tensor, wanted[name]), f"{name} differs"


@pytest.mark.parametrize(
    ("strategy", "after"), [("single", 5), ("data", 1), ("data", 5), ("sharded", 5), ("zero1", 5)]
)
def test_resumed_run_is_bit_identical(strategy, after, run_ranks, tmp_path):
    ranks = 1 if strategy == "single" else 2
    course = config(strategy)
    straight = new_folder(tmp_path / "straight", course)
    run_ranks(run, ranks, course, straight)
    broken = new_folder(tmp_path / "broken", course)
    run_ranks(run_and_stop, ranks, course, broken, after, ranks - 1)
    stopped = read_summary(broken)
    assert stopped.status == "stopped"
    assert after < stopped.steps <= after + 2
    assert "of 8" in str(stopped.reason)
    run_ranks(run, ranks, course, broken, True)
    assert_identical(read_weights(broken), read_weights(straight))
    assert read_losses(broken) == read_losses(straight)
    assert read_summary(broken).eval_loss == read_summary(straight).eval_loss


def read_losses(folder: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["lr"]) for line in lines]


@pytest.mark.parametrize(
    ("first", "then"),
    [(("data", 2), ("sharded", 4)), (("sharded", 4), ("zero1", 2)), (("zero1", 2), ("single", 1))],
)
def test_checkpoint_loads_under_another_strategy_and_world_size(first, then, run_ranks, tmp_path):
    # No dropout, whose numbers differ by rank, and a rate that does not look at the run's length.
    same: dict[str, Any] = {"model": "gpt2-tiny", "schedule": ScheduleConfig(warmup_steps=3)}
    half = config(first[0], steps=4, **same)
    moved = new_folder(tmp_path / "moved", half)
    run_ranks(run, first[1], half, moved)
    run_ranks(run, then[1], config(then[0], **same), moved, True)
    plain = new_folder(tmp_path / "plain", config("single", **same))
    run_ranks(run, 1, config("single", **same), plain)
    weights, wanted = read_weights(moved), read_weights(plain)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, wanted[name], atol=1e-4, rtol=1e-4)
    assert [loss for _, loss, _ in read_losses(moved)] == pytest.approx(
        [loss for _, loss, _ in read_losses(plain)], rel=1e-5
    )


def test_newest_checkpoints_are_kept(run_ranks, tmp_path):
    course = config("data", checkpoint=CheckpointConfig(every=2, keep=2))
    folder = new_folder(tmp_path / "run", course)
    run_ranks(run, 2, course, folder)
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == [
        "step-00000006",
        "step-00000008",
    ]
    assert not list((folder / "checkpoints").glob("*.partial"))


def test_an_interrupted_save_is_not_taken_for_a_checkpoint(run_ranks, tmp_path):
    course = config("data", steps=2)
    folder = new_folder(tmp_path / "run", course)
    run_ranks(run, 2, course, folder)
    checkpoints = folder / "checkpoints"
    half = checkpoints / "step-00000009.partial"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half of it")
    bare = checkpoints / "step-00000010"
    bare.mkdir()
    assert [path.name for path in list_checkpoints(checkpoints)] == ["step-00000002"]
    run_ranks(run, 2, config("data", steps=4), folder, True)
    assert not half.exists()
    assert read_summary(folder).steps == 4


def diverge(config: TrainConfig, folder: Path) -> str:
    with pytest.raises(NonFiniteLossError) as caught:
        train_rank(config, folder, resume=False)
    return str(caught.value)


def test_a_loss_that_is_not_finite_stops_the_run(run_ranks, tmp_path):
    course = config(
        "data",
        model="mlp:size=tiny",
        data="synthetic",
        steps=40,
        optimizer=OptimizerConfig(name="sgd", lr=1e6),
        schedule=ScheduleConfig(warmup_steps=1000),
        checkpoint=CheckpointConfig(every=1, keep=3),
    )
    folder = new_folder(tmp_path / "run", course)
    messages = run_ranks(diverge, 2, course, folder)
    assert messages[0] == messages[1]
    assert "not finite" in messages[0] or "The loss is" in messages[0]
    last = list_checkpoints(folder / "checkpoints")[-1]
    assert str(last) in messages[0]
    assert all(tensor.isfinite().all() for tensor in read_weights(folder).values())


def test_a_learning_rate_may_change_on_resume(run_ranks, tmp_path):
    slow, fast = (OptimizerConfig(lr=rate) for rate in (1e-4, 1e-3))
    first = config("zero1", steps=2, schedule=ScheduleConfig(), optimizer=slow)
    folder = new_folder(tmp_path / "run", first)
    run_ranks(run, 2, first, folder)
    run_ranks(run, 2, config("zero1", steps=4, schedule=ScheduleConfig(), optimizer=fast), folder, True)
    assert [rate for _, _, rate in read_losses(folder)] == [1e-4, 1e-4, 1e-3, 1e-3]


def test_target_loss_is_timed(run_ranks, tmp_path):
    course = config("data", model="gpt2-tiny", steps=30, target_loss=4.5, schedule=ScheduleConfig())
    folder = new_folder(tmp_path / "run", course)
    run_ranks(run, 2, course, folder)
    summary = read_summary(folder)
    losses = [loss for _, loss, _ in read_losses(folder)]
    reached = next(n for n in range(10, 31) if sum(losses[n - 10 : n]) / 10 <= 4.5)
    assert summary.samples_to_target == reached * 8
    assert summary.time_to_target_s is not None
    assert summary.time_to_target_s < summary.wall_s


def test_summary_has_the_shared_names(run_ranks, tmp_path):
    course = config("sharded")
    folder = new_folder(tmp_path / "run", course)
    run_ranks(run, 2, course, folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.keys() == {entry.name for entry in dataclasses.fields(Summary)}
    assert summary["world_size"] == len(summary["peak_memory_bytes"]) == 2
    assert summary["sent_bytes"]["node"] > 0
    assert summary["step_s_p10"] <= summary["median_step_s"] <= summary["step_s_p90"]
    assert summary["options"] == {"group": None, "reshard_after_forward": True}
    assert summary["final_loss"] == read_losses(folder)[-1][1]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == STEPS
    assert "eval_loss" in json.loads(lines[-1])


def resume_wrong(config: TrainConfig, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        train_rank(config, folder, resume=True)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "gpt2-tiny:width=32"}, "has shape"),
        ({"optimizer": OptimizerConfig(name="sgd")}, "of another model or optimizer"),
        ({"batch": 16}, "global batch size of 8, now it is 16"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(changes, words, run_ranks, tmp_path):
    folder = new_folder(tmp_path / "run", config("data", steps=2))
    run_ranks(run, 2, config("data", steps=2), folder)
    assert words in run_ranks(resume_wrong, 2, config("data", **changes), folder)[0]


def test_what_inspecting_leaves_behind_is_no_memory_of_training(run_ranks, tmp_path):
    settings = config("single", steps=12, inspect=2)
    folder = new_folder(tmp_path / "run", settings)
    run_ranks(run_and_hoard, 1, settings, folder)
    (peak,) = read_summary(folder).peak_memory_bytes or [0]
    assert 0 < peak < HOARDED_BYTES
