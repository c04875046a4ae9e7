"""A captured graph computes what the model computes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from graph.interpreter import check_equivalent, run_graph
from graph.odd_models import FusedAttention, Normed, Recurrent, Sequenced, Tied, Writes
from syncline.graph import OpGraph, TensorKind, capture, capture_training

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "tied": (Tied, lambda: torch.randint(12, (4, 6))),
    "normed": (Normed, lambda: torch.randn(4, 3, 8, 8)),
    "fused attention": (FusedAttention, lambda: torch.randn(4, 6, 8)),
    "recurrent": (Recurrent, lambda: torch.randn(4, 5, 6)),
    "writes": (Writes, lambda: torch.randn(4, 6)),
    "sequenced": (Sequenced, lambda: torch.randn(4, 8)),
}


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_computes_what_its_model_does(name: str, mode: str) -> None:
    torch.manual_seed(0)
    build, sample = MODELS[name]
    model, x = build().train(mode == "train"), sample()
    before = copy.deepcopy(model.state_dict())
    graph = capture(model, (x,))

    def expected() -> tuple[Tensor, ...]:
        result = model(x)
        return result if isinstance(result, tuple) else (result,)

    torch.testing.assert_close(model.state_dict(), before, msg="capturing changed the model")
    check_equivalent(graph, model, [x], expected)
    assert not graph.unruled
    assert graph.parameter_count == sum(one.numel() for one in model.parameters())


def test_a_model_without_memory_gives_the_same_graph() -> None:
    with torch.device("meta"):
        small = FusedAttention()
    x = torch.empty(4, 6, 8, device="meta")
    ours, theirs = capture(small, (x,)), capture(FusedAttention(), (torch.empty(4, 6, 8),))
    assert ours.ops == theirs.ops
    assert ours.tensors == theirs.tensors


def test_constants_made_in_forward_keep_their_values_on_meta() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor([1.0, 2.0, 3.0], device=x.device)

    graph = capture(Constant(), (torch.empty(2, 3, device="meta"),))
    (value,) = graph.constants.values()
    assert value.tolist() == [1.0, 2.0, 3.0]


def test_tied_weights_are_one_parameter() -> None:
    graph = capture(Tied(), (torch.zeros(2, 3, dtype=torch.long),))
    assert graph.tied == {"head.weight": "tokens.weight"}
    weight = graph.parameters["tokens.weight"]
    assert [graph.ops[user].target for user in graph.consumers[weight.id]] == [
        "aten.embedding.default",
        "aten.linear.default",
    ]
    assert graph.consumers[graph.parameters["unused"].id] == ()


def test_one_tensor_given_twice_is_two_inputs() -> None:
    tokens = torch.randint(12, (4, 6))
    graph = capture_training(
        Tied(), lambda model, batch: cross_entropy(model(batch[0]).mT, batch[1]), (tokens, tokens)
    )
    assert len(graph.inputs) == 2
    assert all(graph.consumers[index] for index in graph.inputs)
    assert graph.ops[-1].name == "loss/cross_entropy_loss"
    assert graph.tensors[graph.outputs[0]].shape == ()


def test_a_loss_becomes_part_of_the_graph() -> None:
    model, x, y = Sequenced(), torch.randn(6, 8), torch.randint(4, (6,))
    graph = capture(model, (x, y), loss=cross_entropy)
    (loss,), _ = run_graph(graph, model, [x, y])
    torch.testing.assert_close(loss, cross_entropy(model(x), y))
    assert graph.op("blocks.0.up/linear").module == "blocks.0.up"


def test_ops_know_their_line() -> None:
    graph = capture(FusedAttention(), (torch.randn(2, 6, 8),))
    source = graph.op("qkv/linear_chunks").source
    assert source is not None
    assert source.file.endswith("odd_models.py")
    assert "self.qkv" in Path(source.file).read_text().splitlines()[source.line - 1]


def test_running_statistics_are_updates_of_the_op() -> None:
    graph = capture(Normed(), (torch.randn(4, 3, 8, 8),))
    names = [graph.tensors[index].name for index in graph.op("norm/batch_norm").updates]
    assert names == ["norm.running_mean", "norm.running_var"]
    assert [graph.tensors[index].name for index in graph.buffer_updates] == ["norm.num_batches_tracked"]


def test_an_op_without_a_rule_is_listed_with_its_cost() -> None:
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.inv(x) + x

    graph = capture(Unknown(), (torch.randn(4, 4),))
    (op,) = graph.unruled
    assert op.target == "aten.linalg_inv.default"
    assert op.space.splittable == ()
    (listed,) = graph.summary()["unruled"]
    assert listed["bytes"] > 0


@torch.library.custom_op("synclinetest::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda _, grad: grad * 2)


def test_a_custom_op_runs_whole() -> None:
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return twice(self.linear(x))

    model, x = Custom(), torch.randn(2, 4)
    graph = capture(model, (x,))
    assert [op.target for op in graph.unruled] == ["synclinetest.twice.default"]
    check_equivalent(graph, model, [x], lambda: (model(x),))


def test_inputs_that_are_not_tensors_are_constants() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, factor: int, mask: Tensor | None) -> Tensor:
            return x * factor if mask is None else x

    graph = capture(Scaled(), (torch.randn(2, 4), 3, None))
    assert len(graph.inputs) == 1
    assert graph.ops[0].attributes["other"] == 3


def test_a_loss_that_broadcasts_has_rules_for_all_its_ops() -> None:
    graph = capture(nn.Linear(4, 2), (torch.randn(3, 4), torch.randn(3, 2)), loss=nn.functional.mse_loss)
    assert graph.unruled == ()


def test_a_summary_is_json() -> None:
    graph = capture(Normed(), (torch.randn(4, 3, 8, 8),))
    summary = json.loads(json.dumps(graph.summary()))
    assert summary["parameters"] == graph.parameter_count
    assert summary["unruled"] == []


def test_producers_and_consumers_agree() -> None:
    graph = capture(Normed(), (torch.randn(4, 3, 8, 8),))
    _check_links(graph)


def _check_links(graph: OpGraph) -> None:
    for op in graph.ops:
        assert all(graph.producers[index] == op.id for index in op.outputs)
        assert all(op.id in graph.consumers[index] for index in op.inputs)
        assert all((graph.producers[index] or 0) <= op.id for index in op.inputs)
    kinds = {tensor.kind for tensor in graph.tensors if graph.producers[tensor.id] is None}
    assert TensorKind.ACTIVATION not in kinds
