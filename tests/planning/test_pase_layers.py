"""How captured ops become the layers of PaSE, and that the search is exact on them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syncline.errors import PlanningError
from syncline.graph import OpGraph, capture
from syncline.planning.pase import plan_pase
from syncline.planning.pase.configurations import configurations
from syncline.planning.pase.layer import LayerKind
from syncline.planning.pase.layer_graph import LayerGraph, read_layers
from syncline.planning.pase.pricing import full, tables, total
from syncline.planning.pase.result import folded


def layers_of(model: nn.Module, *inputs: Tensor) -> LayerGraph:
    return read_layers(capture(model, inputs))


def names(graph: LayerGraph) -> list[str]:
    return [name for layer in graph.layers for name in layer.joined]


def exchanged(graph: LayerGraph, *parts: dict[str, int]) -> float:
    """The words that the tensors between all layers take, each layer having these parts of its dims."""
    rows = []
    for layer, given in zip(graph.layers, parts, strict=True):
        rows.append(np.array([[given.get(dim.name, 1) for dim in layer.nest.dims]]))
    return sum(
        np.asarray(edge.costs(rows[edge.source], rows[edge.target], 0.5).matrix).item()
        for edge in graph.edges
    )


def test_what_does_not_depend_on_input_and_weight_is_no_layer():
    class Positioned(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            scaled = input * 2
            return super().forward(scaled) + torch.arange(8.0).sin()

    graph = layers_of(Positioned(8, 8), torch.empty(4, 8))
    assert names(graph) == ["linear", "add"]
    assert len(graph.unpriced) == 3


def test_views_dropout_and_pointwise_ops_are_part_of_the_layer_before_them():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 36, 10), nn.Tanh()
    )
    graph = layers_of(model, torch.empty(4, 3, 8, 8))
    assert names(graph) == ["0/conv2d", "4/linear"]
    assert graph.layers[0].fused == ("1/relu", "2/reshape", "3/dropout")
    assert graph.layers[1].fused == ("5/tanh",)


def test_a_flattened_dim_is_cut_as_its_outermost_factor():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))
    graph = layers_of(model, torch.empty(4, 4, 8, 8))
    assert exchanged(graph, {"n": 4}, {"k": 4}) == 0
    assert exchanged(graph, {"b": 4}, {"b0": 4}) == 0
    assert exchanged(graph, {"b": 4}, {"k": 4}) == (4 * 8 * 36 - 1 * 8 * 36) / 4
    # Sixteen parts are more than there are: all that is needed may have to be fetched.
    assert exchanged(graph, {"n": 8}, {"k": 16}) == 4 * 8 * 36 / 16


def test_heads_are_the_outermost_factor_of_a_projection():
    class Heads(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            heads = super().forward(input).unflatten(-1, (4, 8)).transpose(1, 2)
            return heads.softmax(-1)

    graph = layers_of(Heads(16, 32), torch.empty(2, 6, 16))
    assert [dim.size for dim in graph.layers[1].nest.dims] == [2, 4, 6, 8]
    assert exchanged(graph, {"n": 4}, {"d1": 4}) == 0
    assert exchanged(graph, {"n": 8}, {"d1": 4}) == 2 * 6 * 8 / 2
    assert exchanged(graph, {"b1": 3}, {"d2": 3}) == 0


def test_a_view_without_common_factors_is_a_layer_that_is_whole_there():
    class Odd(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).reshape(4, 3, 10).softmax(-1)

    graph = layers_of(Odd(5, 6), torch.empty(4, 5, 5))
    kinds = [layer.nest.kind for layer in graph.layers]
    assert kinds == [LayerKind.LINEAR, LayerKind.OTHER, LayerKind.OTHER]
    assert graph.layers[1].nest.terms == ()


def test_a_batch_merged_with_steps_is_taken_apart():
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    targets = torch.zeros(4, 6, dtype=torch.long)
    graph = read_layers(capture(nn.Linear(8, 10), (torch.empty(4, 6, 8), targets), loss=loss))
    layer = graph.layers[1]
    assert [(dim.name, dim.size) for dim in layer.nest.dims] == [("b.0", 4), ("b.1", 6), ("c", 10)]
    assert layer.batch == 0
    assert exchanged(graph, {"b1": 3}, {"b.1": 3}) == 0
    assert exchanged(graph, {"b1": 3}, {"b.0": 2}) == (24 * 10) / 2 - (2 * 2 * 10)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (2, 8)).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        return F.scaled_dot_product_attention(query, key, value)


class _Cross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.own, self.cross = _Attention(), _Attention()

    def forward(self, x: Tensor) -> Tensor:
        x, memory = self.first(x), self.second(x)
        return self.own(x, x) + self.cross(x, memory)


def test_projections_of_a_module_that_read_one_tensor_are_one_layer():
    graph = layers_of(_Cross(), torch.empty(4, 6, 16))
    assert [layer.joined for layer in graph.layers if layer.nest.kind is LayerKind.LINEAR] == [
        ("first/linear",),
        ("second/linear",),
        ("own.query/linear", "own.key/linear", "own.value/linear"),
        ("cross.query/linear",),
        ("cross.key/linear", "cross.value/linear"),
    ]
    product = graph.layers[2].nest.product
    assert product is not None
    assert product.n_times == 3
    assert sum(edge.target == 2 for edge in graph.edges) == 1
    assert sum(edge.source == 2 for edge in graph.edges) == 3


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Parameter(torch.empty(4 * width, width))
        self.across = nn.Parameter(torch.empty(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(1, x.shape[0], x.shape[2])
        return torch.lstm(x, (state, state), [self.inside, self.across], False, 1, 0.0, True, False, True)[0]


class _Stack(nn.Module):
    def __init__(self, *, residual: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.layers = nn.ModuleList(_Layer(16) for _ in range(3))
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x) if self.residual else F.dropout(layer(x))
        return x


def test_recurrent_layers_in_a_row_are_one():
    graph = layers_of(_Stack(residual=False), torch.empty(4, 6, 16))
    assert [len(layer.joined) for layer in graph.layers] == [1, 3]
    assert [dim.size for dim in graph.layers[1].nest.dims] == [3, 6, 4, 16, 16]


def test_recurrent_layers_with_other_readers_are_not_joined():
    graph = layers_of(_Stack(residual=True), torch.empty(4, 6, 16))
    assert sum(layer.nest.kind is LayerKind.RECURRENT for layer in graph.layers) == 3


def test_an_op_without_a_formula_is_a_layer_too():
    class Sorted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).cumsum(-1)

    graph = layers_of(Sorted(8, 8), torch.empty(4, 8))
    assert names(graph) == ["linear", "cumsum"]
    assert [dim.splittable for dim in graph.layers[1].nest.dims] == [True, False, False]


@pytest.fixture(scope="module")
def small() -> OpGraph:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(x)
            return self.head(x + self.down(self.up(x).relu()))

    targets = torch.zeros(8, dtype=torch.long)
    return capture(Residual(), (torch.empty(8, 8), targets), loss=F.cross_entropy)


@pytest.mark.parametrize(("devices", "ratio"), [(2, 1.0), (2, 500.0), (3, 10.0)])
def test_the_search_finds_what_trying_everything_finds(small, devices, ratio):
    layers = read_layers(small)
    space = [configurations(layer.nest.dims, devices, 1) for layer in layers.layers]
    nodes, edges = tables(layers, space, ratio)
    every = np.zeros([len(rows) for rows in space])
    for place, costs in enumerate(nodes):
        every += np.expand_dims(costs, [axis for axis in range(every.ndim) if axis != place])
    for pair, costs in edges.items():
        every += np.expand_dims(full(costs), [axis for axis in range(every.ndim) if axis not in pair])
    result = plan_pase(small, devices=devices, ratio=ratio)
    assert result.cost == pytest.approx(every.min())
    assert result.statistics.space == every.size
    best = np.unravel_index(every.argmin(), every.shape)
    strategy = [rows[[chosen]] for rows, chosen in zip(space, best, strict=True)]
    assert total(layers, strategy, ratio) == pytest.approx(result.cost)


def test_no_worse_than_data_parallelism(small):
    result = plan_pase(small, devices=8)
    assert result.cost <= result.data_parallel_cost


def test_every_op_of_a_layer_has_its_configuration(small):
    result = plan_pase(small, devices=4)
    assert set(result.configurations) == {op.name for op in small.ops}
    assert result.unpriced == ()
    assert result.configurations["relu"] == result.configurations["up/linear"]
    assert set(result.configurations["up/linear"]) == {"b0", "n", "k"}
    assert len(result.rows()) == len(result.choices)


def test_more_devices_never_cost_more(small):
    costs = [plan_pase(small, devices=devices).cost for devices in (1, 2, 3, 4, 8)]
    assert costs == sorted(costs, reverse=True)


def test_a_model_that_no_expert_is_known_for_has_none(small):
    result = plan_pase(small, devices=4)
    assert (result.expert, result.expert_cost) == (None, None)


@pytest.mark.parametrize(
    "wrong", [{"devices": 0}, {"devices": 4, "ratio": -1.0}, {"devices": 4, "cutoff": 0}]
)
def test_what_cannot_be_planned_is_refused(small, wrong):
    with pytest.raises(PlanningError):
        plan_pase(small, **wrong)


def test_a_graph_without_weights_is_refused():
    with pytest.raises(PlanningError, match="nothing to plan"):
        plan_pase(capture(nn.ReLU(), (torch.empty(4, 4),)), devices=4)


def test_folded_names_stand_for_exactly_what_was_given():
    assert folded([f"a.{layer}.b/linear" for layer in range(3)]) == ["a.0-2.b/linear"]
    assert folded(["a.0.q/linear", "a.0.k/linear"]) == ["a.0.{q,k}/linear"]
    assert folded(["a.0.0/x", "a.0.1/x", "a.1.0/x"]) == ["a.0-1.0/x", "a.0.1/x"]
    assert folded(["linear", "a/linear"]) == ["linear", "a/linear"]
