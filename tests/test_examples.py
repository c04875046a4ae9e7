"""The examples do what they say."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from command import SYNCLINE, TORCHRUN, run_command
from syncline.benchmark.demo import demo_suite
from syncline.benchmark.row import read_rows

EXAMPLES = Path(__file__).parents[1] / "examples"


# Without a launcher, and with one.
@pytest.mark.parametrize("strategy", ["single", "planned"])
def test_own_loop(strategy, tmp_path):
    launcher = (sys.executable,) if strategy == "single" else TORCHRUN
    ended = run_command(*launcher, str(EXAMPLES / "own_loop.py"), strategy, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    losses = [float(loss) for loss in re.findall(r"^step +\d+ +loss ([\d.]+)$", ended.stdout, re.MULTILINE)]
    last = {rank: float(loss) for rank, loss in re.findall(r"rank (\d): loss ([\d.]+)", ended.stdout)}
    assert len(losses) == 4
    assert last.keys() == ({"0"} if strategy == "single" else {"0", "1"})
    assert max(last.values()) < losses[0] / 2


SLOW_STAGE = """
import time
import torch
import syncline

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
batch = torch.ones(2, 4), torch.ones(2, dtype=torch.long)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = syncline.parallelize(model, optimizer, strategy="local", example_batch=batch)
for _ in range(2):
    time.sleep(torch.distributed.get_rank())
    step(batch)
"""


def test_a_rank_that_is_done_waits_for_those_that_read_what_it_sent(tmp_path):
    (tmp_path / "slow_stage.py").write_text(SLOW_STAGE)
    ended = run_command(*TORCHRUN, "slow_stage.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.thorough
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
    demo = str(EXAMPLES / "demo.py")
    ended = run_command(
        sys.executable, demo, "--only", "data:compress=powersgd", folder=tmp_path, timeout_s=280
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^≈ data:compress=powersgd +ok ", ended.stdout, re.MULTILINE)
    assert ended.stdout.endswith("The report: .demo/report.html\n")
    assert (tmp_path / ".demo" / "report.html").exists()


def test_demo_tells_what_failed_and_keeps_its_report_when_a_flag_is_wrong(tmp_path, monkeypatch, capfd):
    main = runpy.run_path(str(EXAMPLES / "demo.py"))["main"]
    report = tmp_path / ".demo" / "report.html"
    monkeypatch.chdir(tmp_path)
    # 16 samples cannot be shared by 3 ranks.
    monkeypatch.setattr(sys, "argv", ["demo.py", "--only", "sharded", "--ranks", "3"])
    assert main() == 1
    told = capfd.readouterr()
    assert "The report: .demo/report.html" in told.out
    assert re.search(r"^sharded failed: .*Its logs: \.demo/runs/gpt2-tiny_sharded_x3", told.err, re.M | re.S)
    before = report.read_text()
    monkeypatch.setattr(sys, "argv", ["demo.py", "--only", "shraded"])
    assert main() == 2
    assert report.read_text() == before


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_every_strategy_of_the_demo_trains(tmp_path):
    ended = run_command(sys.executable, str(EXAMPLES / "demo.py"), folder=tmp_path, timeout_s=1140)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("The report: .demo/report.html\n")
    assert (tmp_path / ".demo" / "report.html").exists()
    rows = read_rows(tmp_path / ".demo")
    assert {row.label: row.status for row in rows} == dict.fromkeys(demo_suite().strategies, "ok")
