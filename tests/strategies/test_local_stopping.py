"""A wish to stop a run in stages: all stages end after the same step, save, and go on as if never stopped."""

import json
from pathlib import Path

import pytest

from strategies.local_runs import assert_identical
from syncline.training.export import read_weights
from syncline.training.summary import read_summary
from training.test_loop import config, new_folder, run, run_and_stop

MODEL = "gpt2-tiny:layers=2,width=32,heads=2,seq=16,positions=16,dropout=0.1"
STEPS, AFTER, LEAD = 10, 2, 3


def told(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


@pytest.mark.parametrize("stopper", [0, 1])
def test_a_stopped_run_goes_on_exactly(stopper, run_ranks, tmp_path):
    """Stages are up to `LEAD` steps apart when one is told, and none waits for the others."""
    course = config("local:queue=1", model=MODEL, steps=STEPS)
    straight, broken = (new_folder(tmp_path / name, course) for name in ("straight", "broken"))
    run_ranks(run, 2, course, straight)
    run_ranks(run_and_stop, 2, course, broken, AFTER, stopper)
    stopped = read_summary(broken)
    assert stopped.status == "stopped"
    assert AFTER < stopped.steps <= AFTER + LEAD + 2
    run_ranks(run, 2, course, broken, True)
    assert_identical(read_weights(broken), read_weights(straight))
    assert told(broken) == told(straight)
