"""Cutting graphs into stages: where, how balanced, and what training in stages is predicted to cost."""

from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.cluster.presets import cluster_from
from syncline.errors import StrategyError
from syncline.graph.cutting import Cutting
from syncline.graph.opgraph import TensorKind
from syncline.planning.staged import StagedCosts
from syncline.planning.stages import balance, candidates, group, named_points, segment_times
from syncline.workloads.load import load_workload
from syncline.workloads.planning import capture_workload

MLP, GPT = "mlp:size=tiny,layers=6", "gpt2-tiny:layers=3,width=32,heads=2,seq=16,positions=16"


@pytest.fixture(scope="module")
def cuttings() -> dict[str, Any]:
    return {model: Cutting(capture_workload(load_workload(model), 8)) for model in (MLP, GPT)}


def test_cut_points_are_where_the_residual_stream_is_alone(cuttings):
    names = [point.name for point in candidates(cuttings[GPT])]
    halves = [f"blocks.{block}/{op}" for block in range(3) for op in ("add", "add_2")]
    assert names == ["tokens/embedding", "add", *halves, "norm/layer_norm"]
    assert cuttings[GPT].logits.name == "linear"


def test_stages_make_every_activation_once_and_hand_over_one(cuttings):
    cutting = cuttings[GPT]
    points = [cutting.point("blocks.0/add_2"), cutting.point("blocks.2/add")]
    stages = cutting.stages(points)
    assert [stage.entry for stage in stages] == [None, *(point.tensor for point in points)]
    assert [stage.exit for stage in stages] == [*(point.tensor for point in points), cutting.graph.outputs[0]]
    ops = [op for stage in stages for op in stage.ops]
    assert set(ops) == {op.id for op in cutting.graph.ops}
    twice = {cutting.graph.ops[op].target for op in ops if ops.count(op) > 1}
    assert not twice & {"aten.linear.default", "aten.layer_norm.default", "aten.embedding.default"}
    held = [{cutting.graph.tensors[one].name for one in stage.parameters} for stage in stages]
    assert set().union(*held) == set(cutting.graph.parameters)
    assert held[0] & held[2] == {"tokens.weight"}


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("model", [MLP, GPT])
def test_the_slowest_stage_is_as_fast_as_in_any_other_cut(model, stages, cuttings):
    cutting = cuttings[model]
    device = cluster_from("1x2").device
    points = candidates(cutting)
    times = segment_times(cutting, points, device)
    extra = {point: 1e-5 * (place % 3) for place, point in enumerate(points)}
    found = balance(cutting, stages, times, extra.__getitem__)
    best = min(
        slowest(cutting, points, times, extra, ends) for ends in combinations(range(len(points)), stages - 1)
    )
    assert found.slowest_s == pytest.approx(best)
    assert len(found.points) == stages - 1


def slowest(cutting, points, times, extra, ends):
    """Of one choice; infinite if a stage has nothing to train."""
    bounds = [0, *(end + 1 for end in ends), len(times)]
    stages = cutting.stages([points[end] for end in ends])
    if not all(_trains(cutting, points, start, end) for start, end in pairwise(bounds)):
        return float("inf")
    assert len(stages) == len(ends) + 1
    over = [extra[points[end]] for end in ends] + [0.0]
    return max(
        sum(times[start:end]) + more for start, end, more in zip(bounds, bounds[1:], over, strict=False)
    )


def _trains(cutting, points, start, end):
    after = [-1, *(point.after for point in points), len(cutting.graph.ops) - 1]
    ops = cutting.graph.ops[after[start] + 1 : after[end] + 1]
    kinds = [cutting.graph.tensors[tensor].kind for op in ops for tensor in op.inputs]
    return TensorKind.PARAMETER in kinds


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 7))
def test_grouping_is_optimal(times, groups):
    groups = min(groups, len(times))
    places = group(times, groups)
    assert places == sorted(places)
    assert set(places) == set(range(groups))
    found = max(sum(t for t, p in zip(times, places, strict=True) if p == place) for place in range(groups))
    best = min(
        max(sum(times[a:b]) for a, b in zip((0, *ends), (*ends, len(times)), strict=True))
        for ends in combinations(range(1, len(times)), groups - 1)
    )
    assert found == best


def test_cuts_can_be_named_by_module(cuttings):
    points = named_points(cuttings[GPT], ["blocks.0", "blocks.1/add"])
    assert [point.name for point in points] == ["blocks.0/add_2", "blocks.1/add"]
    with pytest.raises(StrategyError, match="not in the order"):
        named_points(cuttings[GPT], ["blocks.1", "blocks.0"])
    with pytest.raises(StrategyError, match="2 activations cross there"):
        named_points(cuttings[GPT], ["blocks.0.attention"])


def test_too_many_stages_name_the_longest_stretch(cuttings):
    times = segment_times(cuttings[MLP], candidates(cuttings[MLP]), cluster_from("1x2").device)
    with pytest.raises(StrategyError, match=r"at most 7 stages .* not into 8(.|\n)*longest stretch"):
        balance(cuttings[MLP], 8, times)


def predictions(cutting, cluster, head_flops=0.0):
    costs = StagedCosts(
        cutting, cluster_from(cluster), batch=8, state_factor=2.0, head_flops=lambda start, end: head_flops
    )
    found = {one.name.partition(",stages")[0]: one for one in costs.alternatives(1e12)}
    priced: dict[str, Any] = {name: one.prediction for name, one in found.items()}
    return priced, found


def test_predictions_follow_the_formulas(cuttings):
    found, alternatives = predictions(cuttings[GPT], "1x2")
    gpipe, one_f_one_b = (found[f"pipeline:schedule={name}"] for name in ("gpipe", "1f1b"))
    zero, local = found["pipeline:schedule=zero-bubble"], found["local:stages=2"]
    assert gpipe.times == one_f_one_b.times
    assert zero.times.bubble_s < one_f_one_b.times.bubble_s
    assert local.times.bubble_s == 0
    assert one_f_one_b.memory.saved_activations < gpipe.memory.saved_activations
    assert local.sent_bytes == pytest.approx(gpipe.sent_bytes / 2)
    assert [one.exact for one in alternatives.values()] == [True] * 4 + [False]


def test_messages_that_computing_does_not_hide_are_paid_for(cuttings):
    """On one machine the cores that compute also send: 2 (m - 1) e c more for 1F1B, m e c for local."""
    name, ours = "pipeline:schedule=1f1b,stages=2,microbatches=4", "local:stages=2 (accumulate 4)"
    hidden, exposed = (every_way(cuttings[GPT], overlap) for overlap in (1.0, 0.0))
    message_s = hidden[name].times.redistribute_s / 2
    more_s = exposed[name].times.redistribute_s - hidden[name].times.redistribute_s
    assert more_s == pytest.approx(2 * 3 * message_s)
    busy_s = hidden[ours].times.compute_s + hidden[ours].times.optimizer_s
    assert hidden[ours].times.redistribute_s == pytest.approx(max(0.0, 4 * message_s - busy_s))
    assert exposed[ours].times.redistribute_s == pytest.approx(4 * message_s)


def every_way(cutting, overlap):
    cluster = cluster_from("1x2")
    levels = tuple(replace(level, overlap=overlap) for level in cluster.levels)
    costs = StagedCosts(
        cutting, replace(cluster, levels=levels), batch=8, state_factor=2.0, head_flops=lambda *_: 0.0
    )
    return costs.every_way()


def test_heads_cost_local_time(cuttings):
    free, _ = predictions(cuttings[GPT], "1x2")
    heavy, _ = predictions(cuttings[GPT], "1x2", head_flops=1e9)
    assert heavy["local:stages=2"].step_s > free["local:stages=2"].step_s
    assert heavy["pipeline:schedule=1f1b"] == free["pipeline:schedule=1f1b"]
