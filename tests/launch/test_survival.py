"""Runs that lose a node: the others go on, or end with an error; and a node that comes back is taken in."""

import json

import pytest
import torch

from syncline.errors import ClusterError, RankFailedError
from syncline.launch.emulated import check_emulation_possible, launch_emulated, parse_emulation
from syncline.training.config import CheckpointConfig, EvaluationConfig, TrainConfig
from syncline.training.config_file import write_config
from syncline.training.summary import read_summary

pytestmark = pytest.mark.emulated
STEPS = 150


@pytest.fixture(autouse=True)
def _emulation():
    try:
        check_emulation_possible()
    except ClusterError as error:
        pytest.skip(str(error))


def launch(folder, text, dies, *, strategy, max_restarts=0, by="SIGKILL", silence_s=10):
    emulation = parse_emulation(text)
    config = TrainConfig(
        model="mlp:size=tiny",
        strategy=strategy,
        ranks=emulation.world_size,
        batch=12,
        steps=STEPS,
        checkpoint=CheckpointConfig(every=50),
        evaluation=EvaluationConfig(batches=1),
    )
    write_config(config, folder / "config.toml")
    order = {"folder": str(folder), "dies": dies, "signal": by, "silence_s": silence_s}
    order |= {"steps": STEPS, "waits": max_restarts > 0}
    launch_emulated(
        "survival_programs:train_and_die",
        json.dumps(order),
        emulation=emulation,
        logs=folder / "logs",
        max_restarts=max_restarts,
        survives="continue" in strategy,
    )
    return read_summary(folder)


def steps_of(folder, rank, restart=0):
    path = folder / f"steps-{rank}-{restart}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


SURVIVING = "daso:on-node-loss=continue,warm-up=4,cool-down=4,review-every=20,wire=bf16"


def test_the_others_go_on(tmp_path, capfd):
    summary = launch(tmp_path, "3x1", {"1": 40}, strategy=SURVIVING)
    assert summary.status == "ok"
    assert summary.steps == STEPS
    assert summary.final_loss is not None
    assert summary.final_loss < 2.0
    sizes = [note["world_size"] for note in steps_of(tmp_path, 0)]
    assert sizes[0] == 3
    assert sizes[-1] == 2
    assert max(note["step"] for note in steps_of(tmp_path, 1)) == 40
    first, other = (torch.load(tmp_path / f"weights-{rank}.pt") for rank in (0, 2))
    assert torch.equal(first, other)
    assert not (tmp_path / "weights-1.pt").exists()
    err = capfd.readouterr().err
    assert "Node 1 was lost: 2 nodes go on after step" in err
    assert f"x2: step {STEPS}/{STEPS}" in err
    assert_loss_goes_on(tmp_path, 40)


def assert_loss_goes_on(folder, lost_after):
    """What nodes had learned is not lost with one of them: an average that is none would show at once."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    losses = {line["step"]: line["loss"] for line in lines}
    before = [loss for step, loss in losses.items() if lost_after - 15 < step <= lost_after]
    after = [loss for step, loss in losses.items() if step > lost_after]
    assert sum(after[:15]) / 15 < 1.05 * sum(before) / len(before)


def test_a_node_that_stands_still_is_missed(tmp_path, capfd):
    """Its connections stay open, so that no collective fails."""
    summary = launch(tmp_path, "2x1", {"1": 40}, strategy=SURVIVING, by="SIGSTOP", silence_s=6)
    assert summary.status == "ok"
    assert [note["world_size"] for note in steps_of(tmp_path, 0)][-1] == 1
    assert "Node 1 was lost: 1 node goes on after step" in capfd.readouterr().err
    assert_loss_goes_on(tmp_path, 40)


def test_a_node_comes_back(tmp_path, capfd):
    summary = launch(tmp_path, "2x2", {"3": 40}, strategy=SURVIVING, max_restarts=1)
    assert summary.status == "ok"
    # The node may ask to join before the others have missed it, and then no group is without it.
    sizes = [note["world_size"] for note in steps_of(tmp_path, 0)]
    assert sizes[0] == 4
    assert sizes[-1] == 4
    joined = steps_of(tmp_path, 3, restart=1)
    assert joined[0]["step"] > 40
    assert joined[-1]["step"] == STEPS
    weights = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(4)]
    assert all(torch.equal(weights[0], other) for other in weights[1:])
    err = capfd.readouterr().err
    assert "Node 1 has joined: 2 nodes go on" in err or "A node was lost and has come back" in err


@pytest.mark.parametrize(
    ("strategy", "dies"),
    [
        pytest.param("daso:warm-up=4,cool-down=4,review-every=20", {"1": 60}, id="stop"),
        pytest.param(SURVIVING, {"0": 60}, id="first node", marks=pytest.mark.thorough),
    ],
)
def test_the_run_ends_with_an_error(strategy, dies, tmp_path):
    with pytest.raises(RankFailedError, match="was killed by SIGKILL"):
        launch(tmp_path, "2x1", dies, strategy=strategy)
