"""Real runs in stages: they go on exactly, end when a stage dies, and show their heads."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from command import SYNCLINE, is_alive, run_command, started, wait_until
from made_once import made_once
from syncline.cli.app import run as run_here
from syncline.training.export import read_weights

pytestmark = pytest.mark.timeout(300)

PROGRAMS = Path(__file__).parent
SETTINGS = (
    "batch = 8\nsteps = 100000\n[checkpoint]\nevery = 4\nkeep = 9\n[evaluation]\nevery = 6\nbatches = 2\n"
)
TRAIN = (
    *SYNCLINE,
    "train",
    "own_blocks:net",
    "--strategy",
    "local",
    "--config",
    "settings.toml",
    "-o",
    "run",
)
RESUME = (*SYNCLINE, "train", "--resume", "-o", "run")


def run(*command, folder):
    (folder / "settings.toml").write_text(SETTINGS)
    return run_command(*command, folder=folder, paths=(PROGRAMS,))


def read_metrics(folder):
    path = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    def make(folder):
        ended = run(*TRAIN, "--steps", "12", folder=folder)
        assert ended.returncode == 0, ended.stderr
        return folder, ended

    return made_once(tmp_path_factory, "straight-local-run", make)


def test_says_what_it_does_and_measures_the_model(straight):
    folder, ended = straight
    assert "local: 2 blocks on 2 stages" in ended.stderr
    assert "head mirror (" in ended.stderr
    metrics = read_metrics(folder)
    assert [line["step"] for line in metrics] == list(range(1, 13))
    assert [line["step"] for line in metrics if "eval_loss" in line] == [6, 12]
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["exact"], summary["status"], summary["samples"]) == (False, "ok", 96)
    saved = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
    assert saved == ["step-00000004", "step-00000008", "step-00000012"]


def test_goes_on_exactly_and_with_other_blocks(straight, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(straight[0], tmp_path, dirs_exist_ok=True)
    for later in ("step-00000008", "step-00000012"):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / later)
    ended = run(*RESUME, "--steps", "12", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "start anew" not in ended.stderr
    given, wanted = read_weights(tmp_path / "run"), read_weights(straight[0] / "run")
    assert [name for name, weight in wanted.items() if not torch.equal(given[name], weight)] == []
    told = [(line["step"], line["loss"], line.get("eval_loss")) for line in read_metrics(tmp_path)]
    through = [(line["step"], line["loss"], line.get("eval_loss")) for line in read_metrics(straight[0])]
    assert told == through
    ended = run(*RESUME, "--steps", "14", "--strategy", "local:chunks=3", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "step-00000012 has no heads for some of these blocks: they start anew" in ended.stderr


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.thorough)])
def test_a_killed_stage_ends_the_run(killed, tmp_path):
    (tmp_path / "settings.toml").write_text(SETTINGS)
    with started(*TRAIN, folder=tmp_path, paths=(PROGRAMS,)) as process:
        wait_until(lambda: len(read_metrics(tmp_path)) >= 3, "three steps", process=process)
        os.kill(int((tmp_path / f"pid-{killed}").read_text()), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Rank {killed} was killed by SIGKILL" in err
    assert not is_alive(int((tmp_path / f"pid-{1 - killed}").read_text()))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_evaluate_shows_every_head(straight, monkeypatch, capsys):
    folder, _ = straight
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.chdir(folder)
    assert syncline("evaluate", "run", "--heads", "--batches", "2", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    head, model, ensemble = told["heads"]
    assert head["name"].endswith(":mirror")
    assert (model["name"], ensemble["name"]) == ("model", "ensemble")
    assert told["eval_loss"] == pytest.approx(read_metrics(folder)[-1]["eval_loss"], rel=1e-5)
    assert told["eval_loss"] == pytest.approx(model["loss"], rel=1e-5)
    assert all(0 <= one["accuracy"] <= 1 for one in told["heads"])
    assert syncline("evaluate", "run", "--heads") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("accuracy", "ensemble", "step-00000012"))


def test_evaluate_says_what_it_cannot_show(straight, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(straight[0] / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('strategy = "local"', 'strategy = "data"'))
    for arguments, words in (
        (("nowhere",), "nowhere"),
        (("run", "--heads"), "'data', which has no heads"),
        (("run", "--batches", "0"), "--batches is 0"),
    ):
        assert syncline("evaluate", *arguments) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def syncline(*arguments):
    return run_here(list(arguments))
