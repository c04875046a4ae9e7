from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graph.odd_models import Block, Sequenced
from graph.test_captured_models import batch_for
from syncline.graph import capture, capture_training
from syncline.graph.blocks import Repetition, find_repetitions, fold
from syncline.workloads.calling import ComputeLoss, PlainCall
from syncline.workloads.models.registry import parse_model


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        ("gpt2-tiny:layers=4", ["blocks.0-3"]),
        ("llama-7b:size=tiny,layers=5", ["blocks.0-4"]),
        ("transformer:size=tiny,layers=3", ["encoder.0-2", "decoder.0-2"]),
        ("mlp:size=tiny", ["blocks.1-2"]),  # The first needs no gradient of its input.
        ("alexnet:size=tiny", []),
    ],
)
def test_layers_of_built_in_models_fold(model: str, labels: list[str]) -> None:
    spec = parse_model(model)
    graph = capture_training(
        spec.build(device="meta"), ComputeLoss(PlainCall(), model), batch_for(spec, device="meta")
    )
    repetitions = find_repetitions(graph)
    assert [one.label for one in repetitions] == labels
    for repetition in repetitions:
        for twins in zip(*repetition.blocks, strict=True):
            ops = [graph.ops[index] for index in twins]
            assert len({(op.target, op.space.sizes, op.flops, op.bytes_read) for op in ops}) == 1
    folded = fold(graph)
    inside = sum(len(block) for one in repetitions for block in one.blocks)
    assert len(folded) == len(graph.ops) - inside + len(repetitions)


def test_a_different_block_ends_a_repetition() -> None:
    class Mixed(Sequenced):
        def __init__(self) -> None:
            super().__init__(layers=6)
            self.blocks[3] = Block(8, 24)

    graph = capture(Mixed(), (torch.randn(2, 8),))
    assert [one.label for one in find_repetitions(graph)] == ["blocks.1-2", "blocks.4-5"]


def test_repetitions_inside_different_stages_are_found() -> None:
    class Staged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(
                nn.Sequential(*(Block(8, hidden) for _ in range(3))) for hidden in (16, 24)
            )

        def forward(self, x: Tensor) -> Tensor:
            for stage in self.stages:
                x = stage(x)
            return x

    graph = capture(Staged(), (torch.randn(2, 8),))
    found = find_repetitions(graph)
    assert [one.label for one in found] == ["stages.0.1-2", "stages.1.0-2"]
    assert sum(isinstance(one, Repetition) for one in fold(graph)) == 2
