"""Copying repeated blocks gives the graph that tracing them gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from graph.interpreter import check_equivalent
from graph.odd_models import Block, Sequenced
from syncline.graph import OpGraph, capture, repeats
from syncline.graph.interchangeable import families
from syncline.workloads.models.registry import parse_model


class Indexed(nn.Module):
    """Blocks that know their index and act on it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(Block(8, 16)) for _ in range(5))
        for index, block in enumerate(self.blocks):
            block.add_module("scale", Scale(index))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Scale(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x * self.index if self.index % 2 else x.relu()


class Counting(Sequenced):
    """Every call of a block is different, though the blocks are not: a counter outside decides."""

    def __init__(self) -> None:
        super().__init__(layers=5)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls = 0
        for block in self.blocks:
            x = CountingCall(block, self)(x)
        return x


class CountingCall:
    def __init__(self, block: nn.Module, owner: Counting) -> None:
        self.block, self.owner = block, owner

    def __call__(self, x: Tensor) -> Tensor:
        self.owner.calls += 1
        return self.block(x) * self.owner.calls


class Views(nn.Module):
    """Blocks that look at their input, a mask and a shared table through views, and give two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ViewBlock() for _ in range(5))
        self.register_buffer("table", torch.ones(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for block in self.blocks:
            x, extra = block(x, table=self.table[: x.shape[1]])
            x = x.add_(1)
            total = total + extra
        return x * total


class ViewBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        halves = x.view(*x.shape[:-1], 2, 4)
        found = self.inner(halves).flatten(-2) * table
        return found + x, found.mean()


class Writing(Sequenced):
    """Blocks that write to their input."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        for block in self.blocks:
            block(x.add_(1))
        return self.head(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "sequenced": (lambda: Sequenced(layers=7), lambda: torch.randn(4, 8)),
    "indexed": (Indexed, lambda: torch.randn(4, 8)),
    "counting": (Counting, lambda: torch.randn(4, 8)),
    "views": (Views, lambda: torch.randn(4, 6, 8)),
    "writing": (lambda: Writing(layers=5), lambda: torch.randn(4, 8)),
}


def captured_without_copying(model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> OpGraph:
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "families", lambda _: iter(()))
        return capture(model, (x,))


@pytest.mark.parametrize("name", MODELS)
def test_copied_blocks_are_as_if_traced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    build, sample = MODELS[name]
    model, x = build(), sample()
    graph = capture(model, (x,))
    traced = captured_without_copying(model, x, monkeypatch)
    assert [op.name for op in graph.ops] == [op.name for op in traced.ops]
    assert graph.ops == traced.ops
    assert graph.tensors == traced.tensors
    check_equivalent(graph, model, [x], lambda: (model(x),))


def test_blocks_of_the_built_in_llama_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse_model("llama-7b:size=tiny,layers=6").build(device="meta")
    copied = []
    copy = repeats._copy
    monkeypatch.setattr(repeats, "_copy", lambda *given: copied.append(1) or copy(*given))
    tokens = torch.zeros(2, 8, dtype=torch.long, device="meta")
    graph = capture(model, (tokens,))
    assert len(copied) == 4
    assert graph.ops == captured_without_copying(model, tokens, monkeypatch).ops


def test_only_equal_modules_are_a_family() -> None:
    assert [len(family) for family in families(Sequenced(layers=4))] == [4]
    assert list(families(Indexed())) == []
    mixed = nn.Sequential(*(Block(8, 16) for _ in range(3)))
    mixed[1].eval()
    assert list(families(mixed)) == []
