"""Costs from timings that are given: which ops are wanted, where they count, and what strategies add."""

import dataclasses

import numpy as np
import pytest
import torch

from plan_samples import builtin_graph, plausible_cluster, stack_of_linears
from syncline.cluster.collectives import collective_s
from syncline.cluster.topology import Cluster
from syncline.graph import Op, OpGraph
from syncline.planning.axes import search_axes
from syncline.planning.calibration import Calibration, MachineFigures, OpSeconds, WrapperFigures
from syncline.planning.measuring import calibration, calls_to_time
from syncline.planning.op_calls import op_call
from syncline.planning.parameter_costs import BUCKET_BYTES
from syncline.planning.plan_file import format_plan
from syncline.planning.planner import Planned, Request, make_plan, search_tables
from syncline.planning.repricing import Repricer
from syncline.planning.sent_bytes import sent_bytes
from syncline.planning.strategy_predictions import predict_strategies

MACHINE = MachineFigures(
    dispatch=OpSeconds(forward_s=1e-6, backward_s=2e-6),
    overlap=0.5,
    optimizer_s_per_tensor=1e-3,
    optimizer_s_per_byte=1e-9,
    gathers_beside_compute=False,
    process_bytes=5e6,
)
REQUEST = Request(model="stack", batch=8, proposals=0)


def pair() -> Cluster:
    return plausible_cluster(nodes=1, per_node=2)


def stack() -> OpGraph:
    return stack_of_linears((64, 64, 64), 8)


def halved(op: Op, name: str) -> list[int]:
    """The sizes of an op's dims where one of them is split in two."""
    return [dim.size // 2 if dim.name == name else dim.size for dim in op.space.dims]


def all_timed(graph: OpGraph, cluster: Cluster, seconds: float) -> Calibration:
    """Every call of a search takes so many seconds forward, and twice as many backward."""
    tables = search_tables(graph, cluster, REQUEST)
    calls = calls_to_time(tables, covered=1.0)
    timings = {call.key: OpSeconds(forward_s=seconds, backward_s=2 * seconds) for call in calls}
    return Calibration(machine=MACHINE, ops=timings)


def planned(calibrated: Calibration | None, graph: OpGraph | None = None) -> Planned:
    request = dataclasses.replace(REQUEST, calibration=calibrated)
    return make_plan(graph or stack(), pair(), request)


def test_a_call_has_the_local_shapes_and_says_what_needs_gradients():
    graph = stack()
    op = next(op for op in graph.ops if "linear" in op.target)
    sizes = halved(op, "n")
    whole, half = op_call(graph, op, op.space.sizes), op_call(graph, op, sizes)
    assert half.inputs[1].shape == (32, 64)
    assert half.inputs[0].shape == whole.inputs[0].shape
    assert half.key != whole.key
    assert half.key == op_call(graph, op, sizes).key
    assert half.has_backward


def test_indices_of_a_split_vocabulary_are_legal_on_a_shard():
    graph = builtin_graph("gpt2-tiny", 4)
    op = next(op for op in graph.ops if op.target.startswith("aten.embedding"))
    sizes = halved(op, "v")
    call = op_call(graph, op, sizes)
    assert call.inputs[1].upper == call.inputs[0].shape[0]


def test_the_costliest_calls_are_wanted_first_and_enough_of_them():
    tables = search_tables(builtin_graph("gpt2-tiny", 16), pair(), REQUEST)
    every, most = calls_to_time(tables, covered=1.0), calls_to_time(tables, covered=0.9)
    assert 0 < len(most) < len(every)
    assert [call.key for call in every[: len(most)]] == [call.key for call in most]
    assert len({call.key for call in every}) == len(every)
    assert "linear" in most[0].name or "attention" in most[0].name


def test_timings_take_the_place_of_estimates_and_the_plan_says_so():
    graph, cluster = stack(), pair()
    slow = planned(all_timed(graph, cluster, 1.0))
    timed = sum(not op.is_view for op in graph.ops)
    assert slow.plan.prediction.times.compute_s == pytest.approx(3.0 * timed, rel=0.01)
    assert slow.plan.timed_share == pytest.approx(1.0)
    assert planned(None).plan.timed_share == 0.0
    assert '"timed_share": 1.0' in format_plan(slow.plan)


def test_a_sharding_that_is_timed_to_be_fast_is_chosen():
    graph, cluster = stack(), pair()
    tables = search_tables(graph, cluster, REQUEST)
    slow = all_timed(graph, cluster, 1.0)
    op = next(op for op in graph.ops if "linear" in op.target)
    sizes = halved(op, "n")
    fast = {op_call(graph, op, sizes).key: OpSeconds(forward_s=0.01, backward_s=0.01)}
    found = planned(dataclasses.replace(slow, ops={**slow.ops, **fast}))
    assert found.plan.ops[op.name].split == {"n": (tables.axes.axes[0].name,)}


def test_estimates_without_timings_are_scaled_and_never_below_dispatch():
    graph, cluster = stack(), pair()
    tables = search_tables(graph, cluster, REQUEST)
    first = calls_to_time(tables, covered=0.3)
    timings = {call.key: OpSeconds(forward_s=5.0, backward_s=5.0) for call in first}
    made = calibration(tables, timings, MACHINE)
    assert made.scale > 1
    assert made.ops == timings
    again = search_tables(graph, cluster, dataclasses.replace(REQUEST, calibration=made))
    for before, after in zip(tables.nodes, again.nodes, strict=True):
        if before.costs is not None and after.costs is not None:
            rest = ~after.costs.measured
            floor = np.maximum(before.costs.forward_s * made.scale, MACHINE.dispatch.forward_s)
            assert after.costs.forward_s[rest] == pytest.approx(floor[rest])


def test_the_optimizer_takes_what_it_was_timed_to_take():
    graph = stack()
    found = planned(all_timed(graph, pair(), 1e-6))
    data = predict_strategies(found.search)["data"]
    sizes = [tensor.bytes for tensor in graph.parameters.values()]
    assert data.times.optimizer_s == pytest.approx(len(sizes) * 1e-3 + sum(sizes) * 1e-9)


@pytest.mark.parametrize(("overlap", "hidden"), [(0.0, 0.0), (0.25, 0.25), (1.0, 0.95)])
def test_what_hides_is_what_was_measured_to(overlap, hidden):
    machine = dataclasses.replace(MACHINE, overlap=overlap)
    found = planned(dataclasses.replace(all_timed(stack(), pair(), 1.0), machine=machine))
    assert found.search.exposed_share == pytest.approx(1 - hidden)


def test_small_messages_share_the_latency_of_their_bucket():
    cluster = pair()
    spans = search_axes(cluster).spans(1)
    sizes = np.array([BUCKET_BYTES / 4, BUCKET_BYTES, 2 * BUCKET_BYTES])
    alone = collective_s(cluster, "all_reduce", spans, sizes)
    joined = collective_s(cluster, "all_reduce", spans, sizes, bucket_bytes=BUCKET_BYTES)
    latency_s = 2 * cluster.level("node").latency_s
    assert alone - joined == pytest.approx([0.75 * latency_s, 0.0, 0.0], abs=1e-12)


def test_strategies_cost_what_their_wrappers_add():
    graph = stack()
    plain = all_timed(graph, pair(), 1e-6)
    wrappers = WrapperFigures(
        data_s_per_step=1.0, sharded_s_per_group=2.0, sharded_s_per_tensor=3.0, zero1_s_per_tensor=4.0
    )
    machine = dataclasses.replace(MACHINE, wrappers=wrappers)
    before = predict_strategies(planned(plain).search)
    after = predict_strategies(planned(dataclasses.replace(plain, machine=machine)).search)
    # Layers at the top of a model are no named blocks: all weights are one group.
    tensors, groups = len(graph.parameters), 1
    more = {name: after[name].step_s - before[name].step_s for name in after}
    assert more == pytest.approx(
        {"data": 1.0, "zero1": 1.0 + 4 * tensors, "sharded": 2 * groups + 3 * tensors}
    )


def test_on_cpu_ranks_nothing_hides_what_sharded_weights_wait_for():
    calibrated = all_timed(stack(), pair(), 1.0)
    times = predict_strategies(planned(calibrated).search)["sharded"].times
    assert times.hidden_s == 0.0
    machine = dataclasses.replace(MACHINE, gathers_beside_compute=True)
    beside = predict_strategies(planned(dataclasses.replace(calibrated, machine=machine)).search)["sharded"]
    assert beside.times.hidden_s > 0


def test_memory_of_a_measured_machine_counts_its_process_and_temporaries():
    measured = predict_strategies(planned(all_timed(stack(), pair(), 1.0)).search)["data"].memory
    estimated = predict_strategies(planned(None).search)["data"].memory
    assert measured.weights == estimated.weights
    assert estimated.workspace == 0.0
    assert measured.workspace > MACHINE.process_bytes


def test_sent_bytes_of_data_parallelism_are_those_of_its_all_reduces():
    graph = stack()
    found = planned(None, graph)
    data = dataclasses.replace(found, chosen=found.alternatives[0][1])
    weights = sum(tensor.bytes for tensor in graph.parameters.values())
    # On two devices a ring all-reduce sends the whole buffer once from each.
    assert sent_bytes(Repricer(data))["node"] == pytest.approx(2 * weights, rel=0.01)


def test_timings_do_not_depend_on_the_process():
    graph = stack()
    op = next(op for op in graph.ops if "linear" in op.target)
    assert op_call(graph, op, op.space.sizes).key.startswith("aten.linear.default ")
    assert op_call(graph, op, op.space.sizes).inputs[0].dtype == torch.float32
