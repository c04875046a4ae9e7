"""Plans that leave an op's own parameters strided: units of recurrent layers, heads of joined projections."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plan_samples import builtin_graph, plausible_cluster, two_by_two
from syncline.errors import PlanningError
from syncline.graph import Op, OpGraph, capture
from syncline.planning.baselines import tensor_parallel
from syncline.planning.choices import input_states, legal_assignments, output_states
from syncline.planning.evaluation import evaluate_plan
from syncline.planning.pins import Pin
from syncline.planning.plan import OpSharding
from syncline.planning.plan_check import check_plan
from syncline.planning.plan_file import load_plan, save_plan
from syncline.planning.planner import Request, make_plan
from syncline.planning.roles import own_parameters, splittable_dims
from syncline.planning.table_builder import build_tables

MODEL, BATCH = "rnnlm:size=tiny", 8


class Recurrent(nn.Module):
    """A bidirectional layer, or one that is called twice."""

    def __init__(self, *, both_ways: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 8, batch_first=True, bidirectional=both_ways)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)[0]
        return self.layer(x)[0] if self.twice else x


def recurrent_graph(**kind: bool) -> OpGraph:
    width = 16 if kind.get("both_ways") else 8
    with torch.device("meta"):
        batch = (torch.empty(4, 6, 8), torch.empty(4, 6, width))
        return capture(Recurrent(**kind), batch, loss=F.mse_loss)


class Joined(nn.Module):
    """Attention whose queries, keys and values are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        heads = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.project(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


def lstm(graph: OpGraph) -> Op:
    return next(op for op in graph.ops if op.target.startswith("aten.lstm"))


def names(graph: OpGraph) -> set[str]:
    """The dims of the first LSTM that can be split."""
    op = lstm(graph)
    return {op.space.dims[dim].name for dim in splittable_dims(graph, op)}


def test_units_can_be_split_where_no_other_op_minds():
    graph = recurrent_graph()
    assert names(graph) == {"b", "h"}
    assert len(own_parameters(graph, lstm(graph))) == 4


def test_units_are_whole_where_other_tensors_would_be_strided():
    """The outputs of both directions lie beside each other; weights of two calls must suit both."""
    assert names(recurrent_graph(both_ways=True)) == {"b"}
    graph = recurrent_graph(twice=True)
    assert names(graph) == {"b"}
    assert not own_parameters(graph, lstm(graph))


def test_the_search_weighs_split_units():
    graph = builtin_graph(MODEL, BATCH)
    op = lstm(graph)
    hidden = op.space.index("h")
    assert (legal_assignments(graph, op, two_by_two()) == hidden).any()
    nodes = build_tables(graph, two_by_two()).nodes
    rows = next(one.assignments for one in nodes if one.op is not None and one.op.target == op.target)
    assert rows is not None
    assert (rows == hidden).all(axis=1).any()


def test_megatron_splits_the_heads_of_joined_projections():
    """By columns, then by heads, then by rows: one partial sum at the end, and nothing between."""
    with torch.device("meta"):
        graph = capture(Joined(), (torch.empty(4, 6, 32), torch.empty(4, 6, 32)), loss=F.mse_loss)
    axes = two_by_two()
    shardings = tensor_parallel(graph, axes, [1])
    inner = {op.name: op.space.dims[shardings[op.id][1]].name for op in graph.ops if shardings[op.id][1] >= 0}
    assert inner["project/linear_chunks"] == "n"
    assert inner["scaled_dot_product_attention"] == "d1"
    assert inner["out/linear"] == "k"
    attention = graph.op("scaled_dot_product_attention")
    assert all(
        output_states(maker.space, np.array([shardings[maker.id]], dtype=np.int8), 0)[0, 1]
        == input_states(attention.space, np.array([shardings[attention.id]], dtype=np.int8), place)[0, 1]
        for place, maker in enumerate(graph.ops[graph.producers[one] or 0] for one in attention.inputs)
    )


def test_a_plan_with_split_units_is_kept_checked_and_priced(tmp_path: Path):
    graph, cluster = builtin_graph(MODEL, BATCH), plausible_cluster(2, 2)
    op = lstm(graph)
    pin = Pin(ops=op.name, split={"h": ("node.0",)})
    plan = make_plan(graph, cluster, Request(model=MODEL, batch=BATCH, pins=(pin,), proposals=0)).plan
    assert plan.ops[op.name].split["h"] == ("node.0",)
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == plan
    check_plan(loaded, graph)
    assert evaluate_plan(loaded, graph, cluster).agrees
    wrong = dataclasses.replace(plan, ops={**plan.ops, op.name: OpSharding(split={"t": ("node.0",)})})
    with pytest.raises(PlanningError, match=r"cannot be split along 't'. Dims that can be split: .*h \("):
        check_plan(wrong, graph)
