"""Real runs: what they leave in their folder, how they stop and fail, and that they go on exactly."""

import json
import os
import signal
import time
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

from command import SYNCLINE, TORCHRUN, is_alive, run_command, started, wait_until
from made_once import made_once
from syncline.training.export import read_weights

pytestmark = pytest.mark.timeout(300)

PROGRAMS = Path(__file__).parent
STEPS = 12
SETTINGS = """
batch = 8
steps = 1000
tracking = ["tensorboard"]

[schedule]
shape = "cosine"
warmup_steps = 3

[checkpoint]
every = 4
keep = 2

[evaluation]
batches = 1
"""
START = (*SYNCLINE, "train", "own_models:net", "--config", "settings.toml", "-o", "run")
TRAIN = (*START, "--steps", str(STEPS))
RESUME = (*SYNCLINE, "train", "--resume", "-o", "run")


def new_folder(path):
    path.mkdir(exist_ok=True)
    (path / "settings.toml").write_text(SETTINGS)
    return path


@pytest.fixture
def folder(tmp_path):
    return new_folder(tmp_path)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of an undisturbed run, and what its command showed."""

    def make(folder):
        return folder / "run", run(*TRAIN, "--json", folder=new_folder(folder))

    return made_once(tmp_path_factory, "straight-run", make)


@pytest.fixture
def own_weights(monkeypatch):
    """Reads the weights of a run of the tests' own model."""
    monkeypatch.syspath_prepend(PROGRAMS)
    return read_weights


def run(*command, folder):
    return run_command(*command, folder=folder, paths=(PROGRAMS,))


def read_metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps_made(folder):
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def assert_same_run(folder, straight, read):
    weights, wanted = read(folder), read(straight)
    assert weights.keys() == wanted.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, wanted[name]), f"{name} differs"
    losses = [(line["step"], line["loss"], line["lr"]) for line in read_metrics(folder)]
    assert losses == [(line["step"], line["loss"], line["lr"]) for line in read_metrics(straight)]


def test_the_folder_of_a_run_is_complete(straight):
    folder, ended = straight
    assert ended.returncode == 0, ended.stderr
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["steps"], config["batch"], config["ranks"]) == (STEPS, 8, 2)
    assert config["schedule"] == {"shape": "cosine", "warmup_steps": 3, "floor": 0.0}
    metrics = read_metrics(folder)
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert metrics[-1]["eval_loss"] > 0
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step-00000008",
        "step-00000012",
    ]
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    assert "a word from the model" in (folder / "logs" / "rank-1.log").read_text()


def test_json_is_alone_on_stdout(straight):
    folder, ended = straight
    assert json.loads(ended.stdout) == json.loads((folder / "summary.json").read_text())
    assert json.loads(ended.stdout)["status"] == "ok"


def test_progress_without_a_terminal(straight):
    lines = straight[1].stderr.splitlines()
    lines = [line for line in lines if not line.startswith("a word ")]
    assert lines[0] == "Starting 2 ranks; the run's folder is run"
    assert lines[1].startswith("own_models:net data x2: step 1/12  loss ")
    assert lines[-1].startswith("own_models:net data x2: step 12/12  loss ")
    assert lines[-1].endswith("samples/s  0:00:00 left")
    assert all(line.startswith("own_models:net data x2: step ") for line in lines[1:]), lines


def test_tensorboard_gets_the_metrics(straight):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _ = straight
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    given, metrics = events.Scalars("loss"), read_metrics(folder)
    assert [event.step for event in given] == [line["step"] for line in metrics]
    assert [event.value for event in given] == pytest.approx([line["loss"] for line in metrics])


def test_export_loads_into_the_plain_model(straight, own_weights, tmp_path):
    from safetensors.torch import load_file

    ended = run(*SYNCLINE, "export", str(straight[0]), "-o", "weights.safetensors", folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "a word on import\na word from the model\n")
    assert ended.stdout == "weights.safetensors: 11 tensors\n"
    weights = load_file(tmp_path / "weights.safetensors")
    assert weights["norm.num_batches_tracked"] == STEPS
    assert weights["norm.running_mean"].any()
    assert torch.equal(weights["first.weight"], weights["second.weight"])
    import_module("own_models").Net().load_state_dict(weights, strict=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_stopped_run_goes_on_exactly(number, folder, straight, own_weights):
    (folder / "pace").write_text("0.2")
    with started(*TRAIN, folder=folder, paths=(PROGRAMS,)) as process:
        wait_until(lambda: steps_made(folder) >= 2, "two steps", process=process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert f"stopped by {signal.Signals(number).name} after step" in err
    assert err.rstrip().endswith("go on with: syncline train --resume -o run")
    assert out == "run\n"
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"] < STEPS) == ("stopped", True)
    if number == signal.SIGINT:
        return  # Both signals save the same way: going on once is enough.
    (folder / "pace").unlink()
    ended = run(*RESUME, folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert_same_run(folder / "run", straight[0], own_weights)


def test_a_killed_rank_ends_the_run(folder):
    (folder / "pace").write_text("0.1")
    with started(*START, folder=folder, paths=(PROGRAMS,)) as process:
        wait_until(lambda: steps_made(folder) >= 2, "two steps", process=process)
        os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
        at = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert time.monotonic() - at < 30
    assert process.returncode == 1
    assert "Rank 1 was killed by SIGKILL" in err
    assert str(folder / "run" / "logs" / "rank-1.log") in err
    assert err.count("╭") == 1
    assert not is_alive(int((folder / "pid-0").read_text()))
    assert json.loads((folder / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.thorough
def test_the_error_of_the_first_failing_rank_is_shown(folder):
    (folder / "raise").write_text("3")
    ended = run(*TRAIN, folder=folder)
    assert ended.returncode == 1
    assert "Rank 1 raised KeyError: 'a bug in forward'" in ended.stderr
    assert "own_models.py" in ended.stderr
    assert str(folder / "run" / "logs" / "rank-1.log") in ended.stderr
    assert ended.stderr.count("Traceback") == ended.stderr.count("╭") == 1
    assert ended.stdout == ""
    assert "a bug in forward" in (folder / "run" / "logs" / "rank-1.log").read_text()


def test_a_restarted_run_ends_like_an_undisturbed_one(folder, straight, own_weights):
    (folder / "die").write_text("7")
    (folder / "pace").write_text("0.2")
    ended = run(*TRAIN, "--max-restarts", "1", folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert not (folder / "die").exists()
    # It died in step 7 and went on after step 4, where it had saved.
    assert (folder / "steps-1").read_text().count("\n") == 7 + (STEPS - 4)
    assert "restart 1" in (folder / "run" / "logs" / "rank-1.log").read_text()
    assert_same_run(folder / "run", straight[0], own_weights)


@pytest.mark.thorough
def test_no_rank_outlives_its_launcher(folder):
    (folder / "pace").write_text("0.1")
    with started(*START, folder=folder, paths=(PROGRAMS,)) as process:
        wait_until(lambda: steps_made(folder) >= 1, "a step", process=process)
        ranks = [int((folder / f"pid-{rank}").read_text()) for rank in (0, 1)]
        assert all(map(is_alive, ranks))
        process.kill()
        wait_until(lambda: not any(map(is_alive, ranks)), "the end of the ranks", timeout_s=10)


@pytest.mark.thorough
def test_torchrun_restarts_from_the_last_checkpoint(folder, straight, own_weights):
    (folder / "die").write_text("7")
    (folder / "pace").write_text("0.2")
    without_folder = [word for word in TRAIN[3:] if word not in ("-o", "run")]
    ended = run(*TORCHRUN, "--max-restarts", "1", "-m", "syncline", *without_folder, "--json", folder=folder)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["world_size"], summary["steps"], summary["status"]) == (2, STEPS, "ok")
    assert (folder / "steps-1").read_text().count("\n") == 7 + (STEPS - 4)
    own = folder / "runs" / "own_models-net-data-001"
    assert tomllib.loads((own / "config.toml").read_text())["ranks"] == 2
    assert_same_run(own, straight[0], own_weights)


LATE_FIRST_RANK = """
import os, time

if os.environ.get("RANK") == "0":
    time.sleep(3)
"""


def test_a_mistake_under_torchrun_is_shown_once(folder):
    # torchrun ends all ranks when the first of them leaves, be it before the one that shows the mistake.
    (folder / "sitecustomize.py").write_text(LATE_FIRST_RANK)
    wrong = ("-m", "syncline", "train", "gpt2-tiny", "--batch", "15", "-o", "run")
    ended = run_command(*TORCHRUN, *wrong, folder=folder, paths=(folder,))
    assert ended.returncode not in (0, None)
    assert ended.stderr.count("╭") == 1
    assert "15 is not a multiple of 2" in ended.stderr
    assert ended.stderr.count("rank 1: Wrong strategy: ") <= 1
    assert not (folder / "run").exists()
