"""Compute, exchanges and parameters, against figures worked out by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from plan_samples import made_up_cluster, plausible_cluster, stack_of_linears, two_by_two
from syncline.cluster.collectives import collective_s
from syncline.graph import Op, OpGraph, capture
from syncline.planning.axes import search_axes
from syncline.planning.choices import (
    UNUSED,
    enumerate_assignments,
    input_states,
    legal_assignments,
    output_states,
)
from syncline.planning.op_costs import LAUNCH_S, op_costs
from syncline.planning.parameter_costs import KEEPINGS, Keeping, frozen_costs, parameter_costs
from syncline.planning.saving import find_charges
from syncline.planning.states import PARTIAL, WHOLE
from syncline.planning.table_builder import build_tables


def op_called(graph: OpGraph, target: str) -> Op:
    return next(op for op in graph.ops if target in op.target)


def assigned(op: Op, *dims: str | None) -> np.ndarray:
    row = [UNUSED if name is None else op.space.index(name) for name in dims]
    return np.array([row], dtype=np.int8)


# States of an op's tensors


def test_a_summed_dim_leaves_the_output_partial_and_a_lacking_input_its_gradient():
    op = op_called(stack_of_linears((8, 16), 4), "linear")
    m, n, k = op.space.dims[0].name, "n", "k"
    split = assigned(op, k, n)
    assert output_states(op.space, split, 0).tolist() == [[PARTIAL, 1]]
    assert input_states(op.space, split, 0).tolist() == [[1, PARTIAL]]  # x lacks n
    assert input_states(op.space, split, 1).tolist() == [[1, 0]]  # the weight has both
    assert input_states(op.space, assigned(op, m, None), 1).tolist() == [[PARTIAL, WHOLE]]


def test_products_use_every_device_where_they_can():
    axes, graph = two_by_two(), stack_of_linears((8, 16), 4)
    op = op_called(graph, "linear")
    rows = enumerate_assignments(graph, op, axes)
    assert (rows != UNUSED).all()
    assert len(rows) == 9
    assert len(legal_assignments(graph, op, axes)) == 16


def test_only_even_parts_are_legal():
    axes, graph = two_by_two(), stack_of_linears((8, 6), 2)
    op = op_called(graph, "linear")
    m, n = op.space.dims[0].name, "n"
    legal = legal_assignments(graph, op, axes).tolist()
    assert assigned(op, m, m)[0].tolist() not in legal  # 2 samples on 4 devices
    assert assigned(op, n, n)[0].tolist() not in legal  # 6 outputs on 4 devices
    assert assigned(op, m, n)[0].tolist() in legal


def test_extra_shardings_are_added_once_and_only_if_legal():
    axes, graph = two_by_two(), stack_of_linears((8, 6), 2)
    op = op_called(graph, "linear")
    m = op.space.index(op.space.dims[0].name)
    base = enumerate_assignments(graph, op, axes)
    idle = (UNUSED, UNUSED)
    more = enumerate_assignments(graph, op, axes, [idle, idle, (m, m), tuple(base[0])])
    assert len(more) == len(base) + 1
    assert more[-1].tolist() == list(idle)


def test_one_device_has_one_sharding():
    graph = stack_of_linears((8, 6), 2)
    axes = search_axes(made_up_cluster(1, 1))
    assert enumerate_assignments(graph, op_called(graph, "linear"), axes).shape == (1, 0)


# Compute


def test_the_first_linear_computes_no_input_gradient():
    graph = stack_of_linears((8, 16), 4)
    op = op_called(graph, "linear")
    axes = search_axes(made_up_cluster(flops_per_s=1e3, memory_bytes_per_s=1e9))
    costs = op_costs(graph, op, axes, assigned(op, None, None))
    flops = 2 * 4 * 8 * 16
    assert costs.forward_s[0] == pytest.approx(flops / 1e3 + LAUNCH_S)
    assert costs.backward_s[0] == pytest.approx(flops / 1e3 + LAUNCH_S)  # of the weight alone


def test_a_later_linear_computes_both_gradients_at_local_sizes():
    graph = stack_of_linears((8, 16, 4), 4)
    op = [op for op in graph.ops if "linear" in op.target][1]
    m, k = op.space.dims[0].name, "k"
    axes = search_axes(made_up_cluster(flops_per_s=1e3, memory_bytes_per_s=1e9))
    costs = op_costs(graph, op, axes, assigned(op, m, k))
    flops = 2 * (4 / 2) * (16 / 2) * 4
    assert costs.forward_s[0] == pytest.approx(flops / 1e3 + LAUNCH_S)
    assert costs.backward_s[0] == pytest.approx(2 * flops / 1e3 + LAUNCH_S)


def test_bytes_bind_where_products_are_cheap():
    graph = stack_of_linears((8, 16, 4), 4)
    op = [op for op in graph.ops if "linear" in op.target][1]
    m, n = op.space.dims[0].name, "n"
    axes = search_axes(made_up_cluster(flops_per_s=1e12, memory_bytes_per_s=1e3))
    costs = op_costs(graph, op, axes, assigned(op, m, n))
    # x (2 of 4 by 16), weight (2 of 4 by 16), bias (2 of 4), output (2 by 2)
    moved = 4 * (2 * 16 + 2 * 16 + 2 + 2 * 2)
    assert costs.forward_s[0] == pytest.approx(moved / 1e3 + LAUNCH_S)
    assert costs.backward_s[0] == pytest.approx(2 * moved / 1e3 + LAUNCH_S)


def test_views_are_free():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, 4))
        graph = capture(model, (torch.empty(4, 8), torch.empty(4, 4)), loss=F.mse_loss)
    view = next(op for op in graph.ops if op.is_view)
    costs = op_costs(graph, view, two_by_two(), legal_assignments(graph, view, two_by_two()))
    assert not costs.forward_s.any()
    assert not costs.backward_s.any()


def test_cross_entropy_exchanges_floats_when_the_classes_are_split():
    graph = stack_of_linears((8, 16), 4)
    op = op_called(graph, "cross_entropy")
    classes = next(index for index, dim in enumerate(op.space.dims) if dim.exchange is not None)
    exchange = op.space.dims[classes].exchange
    assert exchange is not None
    axes = two_by_two()
    row = np.array([[UNUSED, classes]], dtype=np.int8)
    costs = op_costs(graph, op, axes, row)
    sizes = [dim.size // (2 if index == classes else 1) for index, dim in enumerate(op.space.dims)]
    rounds = exchange.forward_rounds.count(sizes)
    nbytes = 4 * exchange.forward.count(sizes) / rounds  # float32, although the targets are int64
    if exchange.collective == "all_gather":
        nbytes *= 2
    each = float(collective_s(axes.cluster, exchange.collective, axes.spans(0b10), nbytes))
    assert costs.forward_exchange_s[0] == pytest.approx(rounds * each)
    assert costs.forward_exchange_s[0] > 0


# Parameters

ADAM = 2.0
RATE = 1e3  # bytes/s of memory


def by_keeping(state: tuple[int, int], nbytes: int = 800) -> dict[Keeping, dict[str, float]]:
    """Every figure of one layout: 100 bytes/s in a node, 10 between nodes, no latency."""
    costs = parameter_costs(two_by_two(), nbytes, np.array([state], dtype=np.int8), state_factor=ADAM)
    names = type(costs).__dataclass_fields__
    return {
        keeping: {name: float(getattr(costs, name)[0, column]) for name in names}
        for column, keeping in enumerate(KEEPINGS)
    }


def test_replicated_parameters_are_all_reduced_where_their_gradient_is_partial():
    found = by_keeping((WHOLE, PARTIAL))[Keeping.REPLICATED]
    assert found["forward_gather_s"] == 0
    assert found["backward_reduce_s"] == pytest.approx(2 * 400 / 100)
    assert found["weight_bytes"] == found["gradient_bytes"] == 800
    assert found["state_bytes"] == 1600
    assert found["optimizer_s"] == pytest.approx(800 * (3 + 2 * ADAM) / RATE)


def test_a_parameter_that_is_cut_everywhere_sends_nothing():
    for found in by_keeping((0, 1)).values():
        assert found["forward_gather_s"] == found["backward_reduce_s"] == found["gathered_bytes"] == 0
        assert found["weight_bytes"] == 200
        assert found["state_bytes"] == 400


def test_sharding_the_state_is_zero_1():
    found = by_keeping((0, PARTIAL))[Keeping.STATE_SHARDED]
    assert found["backward_reduce_s"] == pytest.approx(200 / 100)  # scatter sums
    assert found["weight_bytes"] == found["gradient_bytes"] == 400
    assert found["state_bytes"] == 800 / 2
    assert found["optimizer_s"] == pytest.approx(200 * (3 + 2 * ADAM) / RATE)
    assert found["waited_s"] == pytest.approx(200 / 100)  # gather weights


def test_repeated_ops_share_state_though_their_gradient_is_whole():
    found = by_keeping((0, WHOLE))
    assert found[Keeping.REPLICATED]["backward_reduce_s"] == 0
    assert found[Keeping.STATE_SHARDED]["backward_reduce_s"] == 0
    assert found[Keeping.STATE_SHARDED]["waited_s"] == pytest.approx(200 / 100)  # the weights
    assert found[Keeping.STATE_SHARDED]["state_bytes"] == 400


def test_full_sharding_is_zero_3():
    found = by_keeping((PARTIAL, PARTIAL))[Keeping.SHARDED]
    one_way = 400 / 2 / 10 + 800 / 2 / 100  # between nodes half of it, then all of it in the node
    assert found["forward_gather_s"] == pytest.approx(one_way)
    assert found["backward_reduce_s"] == pytest.approx(2 * one_way)  # gather again, scatter the sums
    assert found["weight_bytes"] == found["gradient_bytes"] == 200
    assert found["state_bytes"] == 400
    assert found["gathered_bytes"] == 800


def test_sharding_in_a_node_is_hsdp():
    found = by_keeping((PARTIAL, PARTIAL))[Keeping.SHARDED_IN_NODE]
    assert found["forward_gather_s"] == pytest.approx(400 / 100)
    between = 2 * (400 / 2) / 10  # all-reduce of the half that a device keeps
    assert found["backward_reduce_s"] == pytest.approx(400 / 100 + 400 / 100 + between)
    assert found["weight_bytes"] == 400
    assert found["state_bytes"] == 800


def test_frozen_parameters_cost_memory_only():
    costs = frozen_costs(two_by_two(), 800, np.array([[0, WHOLE]], dtype=np.int8))
    assert costs.kept_bytes.tolist() == [[400] * len(KEEPINGS)]
    assert not costs.backward_reduce_s.any()
    assert not costs.optimizer_s.any()


# Activations


class Blocks(nn.Module):
    """Blocks that end in what they keep themselves, as those of a ResNet do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_each_kept_activation_is_paid_for_once_and_what_passes_between_blocks_stays():
    with torch.device("meta"):
        graph = capture(Blocks(), (torch.empty(4, 8), torch.empty(4, 8)), loss=F.mse_loss)
    charges = [charge for found in find_charges(graph) for charge in found]
    activations = 4 * 4 * 8
    # x, and the result of each ReLU: the linear layers keep what the ReLUs before them keep
    kept = [charge for charge in charges if charge.nbytes == activations]
    assert len(kept) >= 4
    relus = [op for op in graph.ops if "relu" in op.target]
    for relu in relus:
        assert all(charge.enters_block for charge in find_charges(graph)[relu.id])


# Sharing


def test_a_producer_with_one_sharding_is_free_only_if_every_device_has_it_all():
    """Ids that can only be split over the batch must still be gathered for an op that wants them whole."""
    with torch.device("meta"):
        model = nn.Embedding(16, 8)
        graph = capture(
            _Shifted(model),
            (torch.empty(4, dtype=torch.long), torch.empty(4, dtype=torch.long)),
            loss=F.cross_entropy,
        )
    tables = build_tables(graph, search_axes(plausible_cluster(1, 2)))
    shifted = next(op for op in graph.ops if "add" in op.target or "mul" in op.target)
    source = tables.node_of[shifted.id]
    assert any(edge.source == source for edge in tables.edges)


class _Shifted(nn.Module):
    def __init__(self, model: nn.Embedding) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x * 2)
