"""Runs by a plan: what is refused, and how they fail and go on."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

from cli.test_mistakes import assert_refused
from command import SYNCLINE, started, wait_until
from syncline.cli.app import run
from syncline.training.export import read_weights

pytestmark = pytest.mark.timeout(300)

OWN = """
import os
from pathlib import Path
from torch import nn
from syncline import InputSpec, Workload
from syncline.cluster.rank import current_rank

def net():
    Path(f"pid-{current_rank().index}").write_text(str(os.getpid()))
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)
    return Workload(model=nn.Sequential(*layers), input=InputSpec(kind="features", shape=(8,), classes=4))

def other():
    return Workload(model=nn.Linear(8, 4), input=InputSpec(kind="features", shape=(8,), classes=4))
"""
STEPS = 120
SETTINGS = f"batch = 8\nsteps = {STEPS}\n[checkpoint]\nevery = 20\nkeep = 1\n"
PLAN = ("plan", "own:net", "--batch", "8", "--config", "fast.toml", "--cluster")
TRAIN = ("train", "own:net", "--config", "settings.toml", "--ranks", "2", "--plan", "1x2.json")


@pytest.fixture
def folder(workplace):
    (workplace / "own.py").write_text(OWN)
    (workplace / "settings.toml").write_text(SETTINGS)
    (workplace / "fast.toml").write_text("proposals = 0\n")
    (workplace / "broken.json").write_text('{"schema": 1, ')
    (workplace / "pid-0").write_text("none yet")
    return workplace


@pytest.fixture
def plans(folder, capfd):
    """Plans for 1, 2 and 8 ranks, and one for 1 that needs more memory than there is."""
    for ranks in ("1x1", "1x2", "2x4"):
        assert run([*PLAN, ranks, "-o", f"{ranks}.json"]) == 0
    content = json.loads((folder / "1x1.json").read_text())
    content["prediction"]["memory"]["saved_activations"] = 1e15
    (folder / "large.json").write_text(json.dumps(content))
    (folder / "pid-0").unlink()
    capfd.readouterr()
    return folder


def test_a_plan_that_cannot_run_is_refused(plans, capfd):
    train = "train own:net --config settings.toml -o run"
    for arguments, title, words in [
        (f"{train} --ranks 4 --plan 2x4.json", "Cannot plan", ["for 8 ranks", "but 4 run", "--ranks 8"]),
        (f"{train} --ranks 2 --plan 2x4.json", "Cannot plan", ["network.0 of 2", "leave --plan out"]),
        (
            f"{train} --strategy data --plan 1x2.json",
            "Wrong setting",
            ["'data' does not train by a plan", "1x2.json", "--strategy planned"],
        ),
        (f"{train} --plan nowhere.json", "Cannot plan", ["Cannot read the plan nowhere.json"]),
        (f"{train} --plan broken.json", "Cannot plan", ["broken.json is not JSON"]),
    ]:
        assert_refused(arguments, title, words, capfd, plans)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("own:other --plan 1x1.json", ["not for this model", "no op '"]),
        (
            "own:net --plan large.json",
            ["needs 1e+06 GB a rank", "saved activations", "--memory", "syncline plan own:net"],
        ),
    ],
)
def test_a_plan_that_a_rank_refuses(arguments, words, plans, capfd):
    (plans / "pid-0").write_text("1")
    command = f"train --config settings.toml -o run --ranks 1 {arguments}"
    before = {path.name for path in plans.iterdir()}
    assert run(command.split()) == 2
    shown = capfd.readouterr()
    assert shown.err.count("╭") == 1
    assert "Traceback" not in shown.err
    message = " ".join(re.sub("[│╭╰╮╯─]", " ", shown.err).split())
    for word in words:
        assert word in message
    assert {path.name for path in plans.iterdir()} - {"__pycache__"} == before - {"__pycache__"}


def losses_of(folder: Path) -> list[tuple[int, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]


def test_a_killed_run_goes_on_exactly(plans):
    assert run([*TRAIN, "-o", "straight"]) == 0
    (plans / "pid-1").unlink()
    with started(*SYNCLINE, *TRAIN, "-o", "run", folder=plans, paths=(plans,)) as process:
        saved = plans / "run" / "checkpoints"
        wait_until(lambda: saved.exists() and any(saved.glob("step-*[0-9]")), "a checkpoint", process=process)
        os.kill(int((plans / "pid-1").read_text()), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Rank 1 was killed by SIGKILL" in err
    assert json.loads((plans / "run" / "summary.json").read_text())["steps"] < STEPS
    assert run(["train", "--resume", "-o", "run"]) == 0
    assert losses_of(plans / "run") == losses_of(plans / "straight")
    weights, wanted = read_weights(plans / "run"), read_weights(plans / "straight")
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
