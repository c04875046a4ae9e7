"""Models that fit on no machine here are captured all the same."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, time, torch
from syncline.cluster.memory import MemoryMeter
from syncline.graph import capture_training
from syncline.graph.blocks import find_repetitions
from syncline.workloads.calling import ComputeLoss, PlainCall
from syncline.workloads.models.registry import parse_model

meter = MemoryMeter(torch.device("cpu"))
model = parse_model("llama-70b").build(device="meta")
tokens = torch.empty(8, 4096, dtype=torch.long, device="meta")
start = time.process_time()
graph = capture_training(model, ComputeLoss(PlainCall(), "llama-70b"), (tokens, tokens))
print(json.dumps({
    "cpu_s": time.process_time() - start,
    "bytes": meter.peak_bytes(),
    "parameters": graph.parameter_count,
    "expected": sum(one.numel() for one in model.parameters()),
    "unruled": len(graph.unruled),
    "labels": [one.label for one in find_repetitions(graph)],
}))
"""


def test_llama_70b_takes_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["parameters"] == found["expected"] > 68e9
    assert found["bytes"] < 1e9
    assert found["unruled"] == 0
    assert found["labels"] == ["blocks.0-79"]
    assert found["cpu_s"] < 20, "an 80-layer model should take seconds even on a busy machine"
