"""Products that are cut into chunks are one op, where that is what lets the chunks be split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graph.interpreter import run_graph
from syncline.graph import OpGraph, capture
from syncline.planning.roles import splittable_dims


class Attention(nn.Module):
    """Queries, keys and values of one product."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        together = self.project(x)
        query, key, value = (one.unflatten(-1, (4, 2)).transpose(1, 2) for one in together.split(8, dim=-1))
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Swapped(nn.Module):
    """Weights with inputs first, as in GPT-2 of `transformers`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 24))
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, 8), self.weight).view(*x.shape[:2], 24)
        gate, up, down = rows.chunk(3, -1)
        return gate * up + down


def unequal(model: Attention, x: Tensor) -> Tensor:
    first, second = model.project(x).split([8, 16], dim=-1)
    return first.sum() + second


def used_twice(model: Attention, x: Tensor) -> Tensor:
    together = model.project(x)
    return together.chunk(3, -1)[0].sum() + together


def tied(model: Attention, x: Tensor) -> Tensor:
    return model.project(x).chunk(3, -1)[0] @ model.project.weight.t()


def along_the_rows(model: Attention, x: Tensor) -> Tensor:
    first, second = model.project(x).chunk(2, 1)
    return first + second


def reshaped_across(model: Attention, x: Tensor) -> Tensor:
    first, second = model.project(x).view(4, 36, 4).chunk(2, -1)
    return first * second


class Plain(Attention):
    def __init__(self, run: Callable[[Attention, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def graph_of(model: nn.Module) -> tuple[OpGraph, Tensor]:
    x = torch.randn(4, 6, 8)
    return capture(model, (x,)), x


@pytest.mark.parametrize(
    ("model", "name"),
    [(Attention(), "linear_chunks"), (Attention(bias=False), "linear_chunks"), (Swapped(), "addmm_chunks")],
)
def test_a_product_and_its_chunks_are_one_op(model: nn.Module, name: str) -> None:
    graph, x = graph_of(model)
    (op,) = [op for op in graph.ops if name in op.target]
    assert "split_with_sizes" not in " ".join(one.target for one in graph.ops)
    assert {op.space.dims[dim].name for dim in splittable_dims(graph, op)} >= {"n", "k"}
    assert op.space.sizes[op.space.index("n")] == 8
    assert op.forward_flops == 2 * 24 * 8 * 24
    torch.testing.assert_close(run_graph(graph, model, [x])[0], [model(x)])


@pytest.mark.parametrize("run", [unequal, used_twice, tied, along_the_rows, reshaped_across])
def test_a_product_stays_as_it_is(run: Callable[[Attention, Tensor], Tensor]) -> None:
    model = Plain(run)
    graph, x = graph_of(model)
    assert not any("chunks" in op.target for op in graph.ops)
    torch.testing.assert_close(run_graph(graph, model, [x])[0], [model(x)])
