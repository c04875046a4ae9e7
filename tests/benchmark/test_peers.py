"""Other frameworks beside Syncline's strategies: who they are, and that they train what Syncline trains."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from command import run_command
from syncline.benchmark.cells import list_cells
from syncline.benchmark.environment import look_around
from syncline.benchmark.row import read_rows
from syncline.benchmark.suite import Budget, Suite
from syncline.cluster.rank import current_rank
from syncline.errors import ConfigError
from syncline.strategies.registry import STRATEGIES
from syncline.training.config import TrainConfig
from syncline.training.run import prepare_run
from syncline.workloads.load import load_workload

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
MODEL, BATCH, STEPS = "mlp:size=tiny", 8, 16
SUITE = f"""
models = ["{MODEL}"]
strategies = ["data"]
batch = {BATCH}
target_loss = 100.0

[budget]
steps = {STEPS}
"""


@pytest.fixture
def peers_path(monkeypatch):
    """The folder of peers is no package: its modules are imported by their bare names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(PEERS))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(PEERS)):
            del sys.modules[name]


def run_peers(folder, *arguments):
    (folder / "suite.toml").write_text(SUITE)
    return run_command(sys.executable, str(PEERS / "run.py"), "suite.toml", *arguments, folder=folder)


def test_every_peer_can_be_named_and_has_a_strategy_of_its_kind(peers_path):
    from frameworks import PEERS as REGISTRY
    from frameworks import choose_peers

    assert "torch:ddp" in REGISTRY
    for name, peer in REGISTRY.items():
        assert name == peer.full_name
        assert peer.kin in STRATEGIES
        assert (peer.setup is None) is (peer.blocked is not None)
    assert choose_peers([]) == list(REGISTRY.values())
    assert {one.framework for one in choose_peers(["torch:ddp", "deepspeed"])} == {"torch", "deepspeed"}
    with pytest.raises(ConfigError, match=r"(?s)no framework 'deepsped'.*Did you mean.*torch:ddp"):
        choose_peers(["deepsped"])


def test_what_cannot_run_or_gives_no_result_is_a_row_with_the_reason(peers_path):
    from frameworks import PEERS as REGISTRY
    from run import run_peer

    suite = Suite(
        name="small", models=("resnet18:size=tiny",), strategies=("data",), budget=Budget(steps=STEPS)
    )
    (cell,) = list_cells(suite)
    environment = look_around()
    absent = dataclasses.replace(REGISTRY["torch:ddp"], package="no_such_package")
    row = run_peer(suite, cell, absent, environment)
    assert (row.status, row.framework, row.steps) == ("skipped", "torch", 0)
    assert "no_such_package cannot be imported: ModuleNotFoundError" in (row.reason or "")
    pipeline = dataclasses.replace(REGISTRY["deepspeed:pipeline"], package="torch")
    row = run_peer(suite, cell, pipeline, environment)
    assert (row.status, row.strategy) == ("skipped", "pipeline")
    assert "ResNet is not written as a row of layers" in (row.reason or "")
    silent = dataclasses.replace(REGISTRY["torch:ddp"], launch=lambda argument, ranks, logs: None)
    row = run_peer(suite, cell, silent, environment)
    assert (row.status, row.steps) == ("failed", 0)
    assert "without a result" in (row.reason or "")


@pytest.mark.parametrize("name", ["gpt2-tiny:dropout=0", "vgg16:size=tiny", "alexnet:size=tiny", MODEL])
def test_a_row_of_layers_computes_what_its_model_does(peers_path, name):
    from layer_rows import Tied, layer_row

    model = load_workload(name).build_model()
    row = layer_row(model)
    assert row is not None
    inputs = torch.randint(256, (2, 8)) if "gpt2" in name else torch.randn(2, 3, 32, 32)
    inputs = torch.randn(2, 64) if name == MODEL else inputs
    value = inputs
    for layer in row:
        value = (
            layer.forward(nn.ParameterDict({"weight": layer.weight}), value)
            if isinstance(layer, Tied)
            else layer(value)
        )
    assert torch.equal(value, model(inputs))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "."], "never overwrites another"),
        (["-o", "new", "--only", "deepsped"], "Did you mean 'deepspeed'"),
        (["nowhere.toml", "-o", "new"], "There is no file nowhere.toml"),
    ],
)
def test_mistakes_are_explained_before_anything_runs(peers_path, monkeypatch, tmp_path, arguments, words):
    from run import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(SystemExit, match=words):
        main()
    assert list(tmp_path.iterdir()) == []


def one_device_losses():
    config = TrainConfig(model=MODEL, strategy="single", batch=BATCH, steps=STEPS)
    run = prepare_run(config, current_rank(), torch.device("cpu"))
    losses = [float(run.step(run.batches.rows(number, slice(None)))) for number in range(STEPS)]
    run.batches.close()
    return losses


def test_torch_as_a_peer_has_the_losses_of_one_device_and_all_figures(tmp_path):
    ended = run_peers(tmp_path, "--only", "torch:ddp", "-o", "out")
    assert ended.returncode == 0, ended.stderr
    assert "torch:ddp x2 seed 0" in ended.stdout
    (row,) = read_rows(tmp_path / "out")
    assert (row.status, row.framework, row.label, row.steps) == ("ok", "torch", "ddp", STEPS)
    assert [point[2] for point in row.curve] == pytest.approx(one_device_losses(), rel=1e-5)
    # The target is above every loss, so that it is reached as soon as ten steps can be averaged.
    told = dataclasses.asdict(row)
    assert told["samples_to_target"] == 10 * BATCH
    assert told["time_to_target_s"] == pytest.approx(row.curve[9][1], abs=1e-6)
    assert told["device_s_to_target"] == pytest.approx(told["time_to_target_s"] * row.devices)
    assert told["step_s_p10"] <= told["median_step_s"] <= told["step_s_p90"]
    assert told["step_s_low"] <= told["sustained_step_s"] <= told["step_s_high"]
    assert told["wall_s"] > told["time_to_target_s"]
