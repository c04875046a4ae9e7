"""The formulas of PaSE, against values worked out by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from syncline.graph import capture
from syncline.planning.pase.configurations import configurations
from syncline.planning.pase.exchange import missing_words
from syncline.planning.pase.layer import Layer, LayerDim
from syncline.planning.pase.layer_graph import read_layers
from syncline.planning.pase.pricing import layer_costs
from syncline.planning.pase.rules import BatchNorm

RATIO = 100.0


def all_reduce(words: float, parts: int) -> float:
    return RATIO * 2 * words * (parts - 1) / parts


def only_layer(model: nn.Module, *inputs: Tensor, batch_norm: BatchNorm = "paper") -> Layer:
    (layer,) = read_layers(capture(model, inputs), batch_norm).layers
    return layer


def cost(layer: Layer, **parts: int) -> float:
    row = [parts.pop(dim.name, 1) for dim in layer.nest.dims]
    assert not parts, f"no dims {parts} among {[dim.name for dim in layer.nest.dims]}"
    return float(layer_costs(layer, np.array([row]), RATIO)[0])


def test_a_linear_layer_is_a_product_with_three_all_reduces():
    layer = only_layer(nn.Linear(64, 96), torch.empty(32, 64))
    assert cost(layer) == 3 * 32 * 96 * 64
    m, n, k = 32 / 2, 96 / 4, 64 / 8
    exchanged = all_reduce(m * n, 8) + all_reduce(m * k, 4) + all_reduce(n * k, 2)
    assert cost(layer, b0=2, n=4, k=8) == pytest.approx(3 * m * n * k + exchanged)


def test_leading_dims_of_a_linear_layer_are_rows():
    layer = only_layer(nn.Linear(64, 96), torch.empty(32, 10, 64))
    m = 32 * 10 / 20
    assert cost(layer, b0=4, b1=5) == pytest.approx(3 * m * 96 * 64 + all_reduce(96 * 64, 20))


def test_a_pointwise_op_after_a_product_counts_three_times():
    layer = only_layer(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.GELU()), torch.empty(32, 64))
    assert cost(layer) == 3 * 32 * 96 * 64 + 2 * 3 * 32 * 96


def test_a_batched_product_repeats_what_each_batch_costs():
    class Bilinear(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            x = super().forward(input)
            return x @ x.transpose(1, 2)

    layers = read_layers(capture(Bilinear(16, 24), (torch.empty(8, 12, 16),))).layers
    assert len(layers) == 2
    by_size = {dim.size: dim.name for dim in layers[1].nest.dims}
    once = 3 * 12 * 12 * 12 + all_reduce(12 * 12, 2)
    assert cost(layers[1], **{by_size[8]: 4, by_size[24]: 2}) == pytest.approx(2 * once)


def test_a_convolution_is_a_product_over_channels_and_window():
    layer = only_layer(nn.Conv2d(8, 16, 3, padding=1), torch.empty(32, 8, 10, 10))
    m, n, k = 32 * 100 / 4, 16 / 2, 8 * 9 / 2
    exchanged = all_reduce(m * n, 2) + all_reduce(m * k, 2) + all_reduce(n * k, 4)
    assert cost(layer, b=4, n=2, c=2) == pytest.approx(3 * m * n * k + exchanged)


def test_positions_of_a_convolution_are_not_split():
    for kernel in (1, 3):
        layer = only_layer(nn.Conv2d(8, 16, kernel), torch.empty(32, 8, 12, 12))
        assert not any(dim.splittable for dim in layer.nest.dims if dim.name[0] in "io")


def test_groups_of_a_convolution_are_a_batch():
    layer = only_layer(nn.Conv2d(12, 24, 3, groups=4, bias=False), torch.empty(2, 12, 10, 10))
    m, n, k = 2 * 64, 6, 3 * 9
    assert cost(layer) == 4 * 3 * m * n * k
    assert cost(layer, g=4) == 3 * m * n * k


def test_a_transposed_convolution_multiplies_each_input_position():
    layer = only_layer(nn.ConvTranspose2d(8, 16, 4, stride=2), torch.empty(2, 8, 5, 5))
    assert cost(layer) == 3 * (2 * 25) * 16 * (8 * 16)


def test_an_embedding_is_the_product_of_a_one_hot():
    layer = only_layer(nn.Embedding(1000, 64), torch.zeros(32, 10, dtype=torch.long))
    m, n, k = 320 / 4, 64 / 2, 1000 / 5
    exchanged = all_reduce(m * n, 5) + all_reduce(m * k, 2) + all_reduce(n * k, 4)
    assert cost(layer, b0=4, d=2, v=5) == pytest.approx(3 * m * n * k + exchanged)


def test_recurrent_layers_are_a_product_and_their_recurrence():
    layer = only_layer(_Cells(), torch.empty(32, 10, 64))
    layers, steps, batch, units = 2, 10, 32, 64
    m, n, k = steps * batch / 4, 4 * units / 2, 2 * units / 2
    product = 3 * m * n * k + 3 * 3 * m * n
    product += all_reduce(m * n, 2) + all_reduce(m * k, 2) + all_reduce(n * k, 4)
    assert cost(layer, batch=4, n=2, k=2) == pytest.approx(layers * product)
    lacking = (32 / 4) * 64  # The whole input is needed, half of it is there.
    m, n, k = steps * batch / 4, 4 * units / 2, 2 * units
    product = 3 * m * n * k + 9 * m * n + all_reduce(m * k, 2) + all_reduce(n * k, 4)
    recurrence = layers * steps * RATIO * (lacking - lacking / 2)
    assert cost(layer, layers=2, batch=4, n=2) == pytest.approx(layers / 2 * product + recurrence)


class _Cells(nn.Module):
    """Two layers of LSTM cells in one op; `nn.LSTM` cannot be exported."""

    def __init__(self) -> None:
        super().__init__()
        weights = [nn.Parameter(torch.empty(256, 64)) for _ in range(4)]
        self.weights = nn.ParameterList(weights)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(2, x.shape[0], 64)
        return torch.lstm(x, (state, state), [*self.weights], False, 2, 0.0, True, False, True)[0]


def test_attention_is_the_sum_of_its_einsums():
    class Attending(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            x = super().forward(input).unflatten(-1, (4, 8)).transpose(1, 2)
            return F.scaled_dot_product_attention(x, x, x)

    layer = read_layers(capture(Attending(32, 32), (torch.empty(6, 10, 32),))).layers[-1]
    elements = 6 * 4 * 10 * 10
    products = 2 * 3 * elements * 8
    assert cost(layer) == products + elements * (4 + 10)
    assert cost(layer, d0=2, d1=2) == (products + elements * (4 + 10)) / 4
    assert cost(layer, t=2) == pytest.approx(
        products / 2
        + elements / 2 * (4 + 10)
        + 24 * (all_reduce(10 * 8, 2))  # The gradient of the queries.
        + 2 * all_reduce(240, 2)
        + all_reduce(240 * 10, 2)
        + 24 * all_reduce(10 * 8, 2)  # Partial sums of the output.
    )


def test_softmax_exchanges_sums_and_rows():
    layer = read_layers(capture(_After(nn.Softmax(-1)), (torch.empty(32, 48),))).layers[-1]
    elements = 32 * 48 / 8
    expected = elements * (4 + 48) + 2 * all_reduce(16, 4) + all_reduce(16 * 48, 4)
    assert cost(layer, d0=2, k=4) == pytest.approx(expected)


class _After(nn.Module):
    """A layer behind an embedding, which makes it part of the graph."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(48, 48)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x))


def test_cross_entropy_exchanges_two_words_a_row_where_classes_are_split():
    targets = torch.zeros(32, dtype=torch.long)
    graph = capture(nn.Linear(8, 48), (torch.empty(32, 8), targets), loss=F.cross_entropy)
    layer = read_layers(graph).layers[-1]
    assert cost(layer, b=4) == 4 * 8 * 48 + 2 * 8
    assert cost(layer, b=4, c=2) == 4 * 8 * 24 + 2 * 8 + 2 * 8 * RATIO


def test_a_norm_exchanges_moments_and_weights():
    layer = read_layers(capture(_After(nn.LayerNorm(48)), (torch.empty(32, 48),))).layers[-1]
    expected = 16 * 8 * 24 + 4 * all_reduce(8, 2) + 4 * all_reduce(24, 4)
    assert cost(layer, d0=4, k0=2) == pytest.approx(expected)


def test_batch_norm_is_over_the_batch_or_by_channel():
    image = torch.empty(32, 8, 6, 6)
    paper = only_layer(nn.BatchNorm2d(8), image)
    assert cost(paper, b=4, c=2) == pytest.approx(
        16 * 8 * 4 * 36 + 4 * all_reduce(4 * 36, 4) + 4 * all_reduce(8, 2)
    )
    channel = only_layer(nn.BatchNorm2d(8), image, batch_norm="channel")
    assert cost(channel, b=4, c=2) == pytest.approx(16 * 8 * 4 * 36 + 8 * all_reduce(4, 4))


def test_pooling_fetches_a_halo_where_positions_are_split():
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.MaxPool2d(3, 2))
    layer = read_layers(capture(model, (torch.empty(32, 8, 33, 33),))).layers[-1]
    assert cost(layer, b0=4) == 8 * 8 * 16 * 16
    halo = RATIO * 32 * 8 * ((33 / 2 + 3) * 33 - 33 / 2 * 33)
    assert cost(layer, y=2) == pytest.approx(32 * 8 * 8 * 16 + halo)


def test_a_mean_all_reduces_what_is_not_yet_reduced():
    class Pooled(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).mean((2, 3))

    layer = read_layers(capture(Pooled(8, 8, 1), (torch.empty(32, 8, 6, 6),))).layers[-1]
    assert cost(layer, d0=4) == 0
    assert cost(layer, d0=4, d2=2) == pytest.approx(all_reduce(8 * 8 * 3 * 6, 2))


def test_elementwise_ops_of_two_tensors_count_once_and_what_follows_them_too():
    class Residual(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            x = super().forward(input)
            return (x + F.layer_norm(x, (48,))).relu()

    layer = read_layers(capture(Residual(48, 48), (torch.empty(32, 48),))).layers[-1]
    assert cost(layer, b0=4) == 2 * 8 * 48


@pytest.mark.parametrize(
    ("held", "needed", "words"),
    [
        ((1, 1), (1, 1), 0),
        ((4, 1), (4, 1), 0),
        ((4, 1), (1, 1), 64 - 16),
        ((4, 1), (2, 2), 16 - 4 * 2),
        ((4, 1), (1, 4), 16 - 4 * 1),
        ((2, 1), (4, 1), 16),  # More shards than there were: some device has nothing yet.
        ((1, 1), (2, 1), 32),
    ],
)
def test_a_device_misses_what_it_needs_and_does_not_hold(held, needed, words):
    tensor = (16, 4)
    assert missing_words(tensor, np.array(held, float), np.array(needed, float)) == words


def test_configurations_are_the_divisors_that_leave_enough():
    dims = [LayerDim("a", 12), LayerDim("b", 8), LayerDim("c", 30, splittable=False), LayerDim("d", 3)]
    every = configurations(dims, 6, 1).tolist()
    expected = [
        [a, b, 1, d] for a in (1, 2, 3, 4, 6) for b in (1, 2, 4) for d in (1, 3) if math.prod((a, b, d)) <= 6
    ]
    assert every == expected
    assert configurations(dims, 6, 4).tolist() == [[a, b, 1, 1] for a in (1, 2, 3) for b in (1, 2)]
    assert configurations([], 6, 1).tolist() == [[]]
