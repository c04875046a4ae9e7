from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.cluster.collectives import (
    COLLECTIVES,
    collective_lines,
    collective_s,
    fastest_line,
    ring_terms,
)
from syncline.cluster.mesh import Mesh
from syncline.cluster.presets import cluster_from
from syncline.cluster.topology import Cluster, Device, Level, Slowdown

DEVICE = Device(flops_per_s=1e12, memory_bytes=1 << 30, memory_bytes_per_s=1e11)
MEGABYTE = 1e6

kinds = st.sampled_from(COLLECTIVES)
sizes = st.floats(0, 1e12)


def cluster_of(*levels: tuple[int, float, float]) -> Cluster:
    return Cluster(
        name="test",
        device=DEVICE,
        levels=tuple(
            Level(name=name, size=size, bytes_per_s=rate, latency_s=latency)
            for name, (size, rate, latency) in zip(("node", "network", "region"), levels, strict=False)
        ),
    )


level_figures = st.tuples(st.integers(1, 12), st.floats(1e6, 1e12), st.floats(0, 1e-2))
clusters = st.lists(level_figures, min_size=1, max_size=3).map(lambda levels: cluster_of(*levels))


@st.composite
def groups(draw):
    """A cluster, and a group on it that takes a divisor of each level."""
    cluster = draw(clusters)
    spans = tuple(
        draw(st.sampled_from([span for span in range(1, level.size + 1) if level.size % span == 0]))
        for level in cluster.levels
    )
    return cluster, spans


def seconds(cluster, kind, spans, nbytes) -> float:
    return float(collective_s(cluster, kind, spans, nbytes))


@given(groups(), kinds, sizes, sizes)
def test_more_bytes_never_take_less_time(group, kind, first, second):
    less, more = sorted((first, second))
    assert seconds(*_at(group, kind), less) <= seconds(*_at(group, kind), more)


def _at(group, kind):
    return group[0], kind, group[1]


@given(groups(), kinds, sizes, st.integers(0, 2), st.floats(1, 1e6), st.floats(0, 1))
def test_a_faster_level_never_costs_more(group, kind, nbytes, index, speedup, latency_factor):
    cluster, spans = group
    levels = list(cluster.levels)
    index %= len(levels)
    levels[index] = dataclasses.replace(
        levels[index],
        bytes_per_s=levels[index].bytes_per_s * speedup,
        latency_s=levels[index].latency_s * latency_factor,
    )
    faster = dataclasses.replace(cluster, levels=tuple(levels))
    assert seconds(faster, kind, spans, nbytes) <= seconds(cluster, kind, spans, nbytes) * (1 + 1e-12)


@given(groups(), kinds)
def test_one_member_or_nothing_to_send_costs_nothing(group, kind):
    cluster, spans = group
    assert seconds(cluster, kind, [1] * len(spans), MEGABYTE) == 0
    assert seconds(cluster, kind, spans, 0) == 0


@given(groups(), kinds, sizes)
def test_never_slower_than_one_flat_network(group, kind, nbytes):
    cluster, spans = group
    crossed = [(level, span) for level, span in zip(cluster.levels, spans, strict=True) if span > 1]
    if not crossed or nbytes == 0:
        return
    members = math.prod(spans)
    steps, fraction = ring_terms(kind, members)
    latency_s = max(level.latency_s for level, _ in crossed)
    bytes_per_s = min(level.bytes_per_s for level, _ in crossed)
    flat = steps * latency_s + fraction * nbytes / bytes_per_s
    assert seconds(cluster, kind, spans, nbytes) <= flat * (1 + 1e-12)


@given(groups(), sizes)
def test_all_reduce_is_never_slower_than_reduce_scatter_and_all_gather(group, nbytes):
    cluster, spans = group
    halves = seconds(cluster, "reduce_scatter", spans, nbytes) + seconds(cluster, "all_gather", spans, nbytes)
    assert seconds(cluster, "all_reduce", spans, nbytes) <= halves * (1 + 1e-12)


@given(st.integers(2, 64), st.floats(1, 1e12), st.floats(1e6, 1e12))
def test_volumes_of_one_level_are_the_closed_formulas(members, nbytes, rate):
    cluster = cluster_of((members, rate, 0.0))
    around = (members - 1) / members
    volumes = {kind: seconds(cluster, kind, (members,), nbytes) * rate for kind in COLLECTIVES}
    assert volumes["all_reduce"] == pytest.approx(2 * nbytes * around)
    assert volumes["all_gather"] == pytest.approx(nbytes * around)
    assert volumes["reduce_scatter"] == pytest.approx(nbytes * around)
    assert volumes["all_to_all"] == pytest.approx(nbytes * around)
    assert volumes["broadcast"] == pytest.approx(nbytes)
    assert volumes["send"] == pytest.approx(nbytes)


@given(st.integers(2, 64), st.floats(1e-7, 1e-3))
def test_latency_of_one_level_grows_with_the_steps(members, latency_s):
    cluster = cluster_of((members, 1e30, latency_s))
    depth = math.ceil(math.log2(members))
    assert seconds(cluster, "all_gather", (members,), 1) == pytest.approx((members - 1) * latency_s)
    expected = 2 * min(members - 1, depth) * latency_s
    assert seconds(cluster, "all_reduce", (members,), 1) == pytest.approx(expected)
    assert seconds(cluster, "broadcast", (members,), 1) == pytest.approx(depth * latency_s)


def test_hierarchical_all_reduce_sends_each_part_over_the_slow_links_once():
    cluster = cluster_of((8, 100e9, 0.0), (4, 1e9, 0.0))
    inside = 2 * MEGABYTE * 7 / 8 / 100e9
    between = 2 * (MEGABYTE / 8) * 3 / 4 / 1e9
    assert seconds(cluster, "all_reduce", (8, 4), MEGABYTE) == pytest.approx(inside + between)
    line = fastest_line(cluster, "all_reduce", (8, 4), MEGABYTE)
    assert line is not None
    assert line.algorithm == "ring node, ring network, ring node"


def test_a_flat_ring_leaves_a_unit_with_the_shares_of_all_its_members():
    # Eight members of a node share the way out: their ring leaves it with 8 shares of 1 GB/s.
    cluster = cluster_of((8, 8e9, 0.0), (2, 1e9, 0.0))
    assert seconds(cluster, "all_gather", (8, 2), 1e9) == pytest.approx(15 / 16 / 8)
    # One member in each node has one share only: the other seven are for the other groups.
    assert seconds(cluster, "all_gather", (1, 2), 1e9) == pytest.approx(1 / 2)


def test_all_to_all_sends_what_other_nodes_need_through_the_network():
    cluster = cluster_of((4, 1e12, 0.0), (2, 1e9, 0.0))
    assert seconds(cluster, "all_to_all", (4, 2), 1e9) == pytest.approx(0.5, rel=1e-2)


def test_all_to_all_of_small_messages_gathers_inside_first():
    cluster = cluster_of((4, 1e9, 1e-6), (8, 1e9, 1e-3))
    assert seconds(cluster, "all_to_all", (4, 8), 1) == pytest.approx(7e-3, rel=0.01)


def test_send_takes_the_outermost_level():
    cluster = cluster_of((4, 1e10, 1e-6), (2, 1e9, 1e-5))
    assert seconds(cluster, "send", (4, 1), 1e6) == pytest.approx(1e-6 + 1e-4)
    assert seconds(cluster, "send", (4, 2), 1e6) == pytest.approx(1e-5 + 1e-3)


def test_a_measured_slowdown_multiplies_the_time_of_its_collective():
    level = Level(name="node", size=4, bytes_per_s=1e9, latency_s=1e-4, slowdown=Slowdown(reduce_scatter=2.5))
    cluster = Cluster(name="slow", device=DEVICE, levels=(level,))
    gather, scatter = (seconds(cluster, kind, (4,), MEGABYTE) for kind in ("all_gather", "reduce_scatter"))
    assert scatter == pytest.approx(2.5 * gather)


@given(groups(), kinds, st.lists(sizes, min_size=1, max_size=8))
def test_arrays_agree_with_single_sizes(group, kind, many):
    cluster, spans = group
    together = collective_s(cluster, kind, spans, np.array(many).reshape(1, -1))
    assert together.shape == (1, len(many))
    assert together[0].tolist() == [seconds(cluster, kind, spans, nbytes) for nbytes in many]


@given(groups(), kinds, sizes)
def test_the_line_named_is_the_one_counted(group, kind, nbytes):
    cluster, spans = group
    line = fastest_line(cluster, kind, spans, nbytes)
    expected = 0.0 if line is None else line.latency_s + line.s_per_byte * nbytes
    assert seconds(cluster, kind, spans, nbytes) == pytest.approx(expected, rel=1e-12)


@given(groups(), kinds)
def test_no_line_is_useless(group, kind):
    lines = collective_lines(group[0], kind, group[1])
    latencies = [line.latency_s for line in lines]
    slopes = [line.s_per_byte for line in lines]
    assert latencies == sorted(latencies)
    assert slopes == sorted(slopes, reverse=True)


def test_a_group_that_does_not_fit_the_levels_is_a_bug():
    cluster = cluster_of((8, 1e9, 0.0))
    with pytest.raises(ValueError, match="does not divide"):
        collective_s(cluster, "all_reduce", (3,), MEGABYTE)
    with pytest.raises(ValueError, match="does not divide"):
        collective_s(cluster, "all_reduce", (8, 1), MEGABYTE)


def test_a_mesh_axis_inside_a_node_is_cheaper_than_one_between_nodes():
    cluster = cluster_from("a100-dgx:4")
    mesh = Mesh.of(cluster)
    inside = seconds(cluster, "all_reduce", mesh.spans(["node.0"]), MEGABYTE)
    between = seconds(cluster, "all_reduce", mesh.spans(["network.0"]), MEGABYTE)
    assert 0 < inside < between
