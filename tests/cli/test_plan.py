"""`syncline plan`: what it prints, what it saves, and how it says what is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import syncline
from syncline.cli.app import run
from syncline.graph import capture_training
from syncline.planning.plan_check import check_plan
from syncline.planning.plan_file import load_plan
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

MODEL = "gpt2-tiny:layers=2"
FAST = ("--cluster", "h100-dgx:2", "--config", "fast.toml")


@pytest.fixture
def folder(workplace: Path) -> Path:
    (workplace / "fast.toml").write_text("proposals = 0\n")
    (workplace / "own.py").write_text(
        "from torch import nn\n"
        "from syncline import InputSpec, Workload\n"
        "def build():\n"
        "    print('a word from the model')\n"
        "    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))\n"
        "    return Workload(model=net, input=InputSpec(kind='features', shape=(8,), classes=4))\n"
        "def bare():\n"
        "    return nn.Linear(8, 4)\n"
    )
    return workplace


def plan(*arguments: str) -> int:
    return run(["plan", *arguments])


def test_it_shows_the_alternatives_and_the_plan_by_layer(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert plan(MODEL, *FAST, "--batch", "32") == 0
    out = capsys.readouterr().out
    for words in [
        "parameters",
        "16 devices, not measured",
        "10^",
        "capture",
        "this plan",
        "data parallel, fully sharded",
        "blocks.0-1",
        "attention.{query,key,value}/linear",
        "(batch) /",
        "saved activations",
        "saved as plan.json",
    ]:
        assert words in out
    assert len(out.splitlines()) < 70
    workload = load_workload(MODEL, device="meta")
    graph = capture_training(
        workload.build_model("meta"), workload.compute_loss, workload_batch(workload, 32)
    )
    check_plan(load_plan(folder / "plan.json"), graph)


def test_json_is_one_document_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert plan("own:build", "--cluster", "h100-dgx", "--json", "--explain", "-o", "own.json") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["schema"] == 1
    assert document["ops"].keys() == load_plan(folder / "own.json").ops.keys()
    assert document["capture_s"] > 0
    assert {"ops", "resources", "verdicts"} <= document["explanation"].keys()
    assert "a word from the model" in printed.err


def test_inexact_ways_are_listed_when_they_are_allowed(folder: Path, capsys: pytest.CaptureFixture[str]):
    def ways(*more: str) -> dict[str, Any]:
        assert plan(MODEL, *FAST, "--batch", "32", "--json", *more) == 0
        return {one["name"]: one for one in json.loads(capsys.readouterr().out)["alternatives"]}

    usual, allowed = ways(), ways("--allow-inexact")
    staged = {name: one for name, one in allowed.items() if name not in usual}
    assert all(one["exact"] for one in usual.values())
    assert [name.partition(",stages")[0].partition("=")[0] for name in staged] == [
        *["pipeline:schedule"] * 4,
        "local:stages",
    ]
    for name, one in staged.items():
        found = one["prediction"]
        assert one["exact"] == name.startswith("pipeline")
        assert (found["times"]["bubble_s"] > 0) == one["exact"]
        assert found["times"]["compute_s"] > 0
        assert min(found["sent_bytes"], found["memory"]["saved_activations"]) > 0
    assert plan(MODEL, *FAST, "--batch", "32", "--allow-inexact") == 0
    out = capsys.readouterr().out
    assert "local:stages" in out
    assert "bubble" in out


def test_it_explains(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert plan(MODEL, *FAST, "--explain") == 0
    out = capsys.readouterr().out
    for words in [
        "Why: the costliest ops",
        "next best:",
        "then the step takes",
        "twice the FLOP/s of the devices",
        "bandwidth of the level 'network'",
        "What would have to change for each alternative",
        "data parallel (1.",
    ]:
        assert words in out


def test_the_page_stands_alone(folder: Path):
    assert plan(MODEL, *FAST, "--html", "plan.html") == 0
    page = (folder / "plan.html").read_text()
    for words in [
        "Ways to train it",
        "Where the time goes",
        "Where the memory goes",
        "blocks.0",
        "not measured",
    ]:
        assert words in page
    assert page.count('<script src="') == page.count("<link") == 0
    assert page.count("plotly.js v") == 1
    assert page.count("Plotly.newPlot(") >= 3


def test_the_page_needs_the_extra(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert plan("own:build", "--cluster", "h100-dgx", "--html", "plan.html") == 2
    assert "pip install 'syncline[report]'" in capsys.readouterr().err
    assert not list(folder.glob("plan.*"))


def test_what_does_not_fit_is_named_with_a_change_that_does(folder: Path, capsys: pytest.CaptureFixture[str]):
    model, limit = ("gpt2-small:layers=3", *FAST), ("--memory", "1.9GB")
    assert plan(*model, "--batch", "64", *limit) == 2
    message = capsys.readouterr().err
    assert "Nothing fits" in message
    assert re.search(r"What binds is (gather buffers|saved activations): 1\.\d+ GB", message)
    memory, batch = (re.search(rf"--{flag} ([\w.]+\b)", message) for flag in ("memory", "batch"))
    assert memory is not None
    assert plan(*model, "--batch", "64", "--memory", memory[1].rstrip(".")) == 0
    if batch is not None:
        assert plan(*model, *limit, "--batch", batch[1].rstrip(".")) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gpt2-tiny", "--memory", "much"], ["Wrong setting", "--memory is 'much'", "40GB"]),
        (["gpt2-tiny", "--memory", "0GB"], ["above 0"]),
        (["gpt2-tiny", "--cluster", "h101-dgx"], ["Wrong cluster", "h100-dgx", "cluster.toml"]),
        (["gpt2-tiny", "--cost", "free"], ["free", "pase, syncline"]),
        (["gpt2-tiny", "--batch", "0"], ["batch is 0"]),
        (["gpt3"], ["Wrong model", "gpt3"]),
        ([], ["Which model?"]),
        (["own:bare"], ["nothing says what own:bare takes", "[input]"]),
        (["gpt2-tiny", "--config", "none.toml"], ["none.toml"]),
        (
            ["gpt2-tiny", "--config", "wrong.toml"],
            ["wrong.toml", "'spilt'", "allowed: ops, parameters, split"],
        ),
    ],
)
def test_mistakes_are_explained(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: list[str]
):
    (folder / "wrong.toml").write_text('[[pin]]\nops = "*"\nspilt = {}\n')
    assert plan(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for words in told:
        assert words in printed.err
    assert not (folder / "plan.json").exists()


def test_pins_and_input_come_from_the_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "plan.toml").write_text(
        'cluster = "h100-dgx"\nbatch = 16\n[input]\nkind = "features"\nshape = [8]\nclasses = 4\n'
        '[[pin]]\nops = "*linear*"\nsplit = { n = ["node.0"] }\n'
    )
    assert plan("own:bare", "--config", "plan.toml") == 0
    assert "n /2 over node" in capsys.readouterr().out
    saved = load_plan(folder / "plan.json")
    assert saved.workload.batch == 16
    assert saved.ops["linear"].split["n"] == ("node.0",)


def test_the_papers_setting(folder: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ("alexnet", "--cluster", "gtx1080ti-pcie", "--cost", "pase", "--batch", "128")
    assert plan(*arguments) == 0
    out = capsys.readouterr().out
    for words in ["8 devices", "data parallel", "one weird trick", "hidden.2/linear", "conv2d"]:
        assert words in out
    assert plan(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["against"]["data parallel"] > 1


def test_the_same_from_python():
    workload = load_workload(MODEL, device="meta")
    found = syncline.plan(workload.build_model("meta"), workload_batch(workload, 32), cluster="h100-dgx:2")
    assert found.workload.batch == 32
    assert all(
        found.prediction.step_s <= one.prediction.step_s for one in found.alternatives if one.prediction
    )
