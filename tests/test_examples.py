"""The examples do what they say."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from command import SYNCLINE, TORCHRUN, run_command

EXAMPLES = Path(__file__).parents[1] / "examples"


# One of each kind: whole models, parts of weights, and captured models.
@pytest.mark.parametrize("strategy", ["single", "sharded", "planned"])
def test_own_loop(strategy, tmp_path):
    launcher = (sys.executable,) if strategy == "single" else TORCHRUN
    ended = run_command(*launcher, str(EXAMPLES / "own_loop.py"), strategy, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    losses = [float(loss) for loss in re.findall(r"^step +\d+ +loss ([\d.]+)$", ended.stdout, re.MULTILINE)]
    last = {rank: float(loss) for rank, loss in re.findall(r"rank (\d): loss ([\d.]+)", ended.stdout)}
    assert len(losses) == 4
    assert last.keys() == ({"0"} if strategy == "single" else {"0", "1"})
    assert max(last.values()) < losses[0] / 2


def test_own_model(tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    model = "examples.own_model:build"
    options = ("--strategy", "sharded", "--steps", "20", "-o", "run")
    ended = run_command(*SYNCLINE, "train", model, *options, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "run\n"), ended.stderr
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in metrics]
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.timeout(300)
def test_demo(tmp_path):
    ended = run_command(sys.executable, str(EXAMPLES / "demo.py"), folder=tmp_path, timeout_s=280)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"│ data +│ yes ", ended.stdout)
    assert re.search(r"│ sharded +│ yes ", ended.stdout)
    assert (tmp_path / ".demo" / "sharded" / "summary.json").exists()
