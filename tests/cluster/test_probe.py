from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
import torch.distributed as dist

from syncline.cluster.cluster_file import load_cluster, save_cluster
from syncline.cluster.probe import ProbeSettings, probe_cluster
from syncline.cluster.probe_points import PROBED
from syncline.cluster.probe_report import ProbeReport
from syncline.cluster.rank import Rank
from syncline.cluster.timing import Pace, Point, slowest, time_points
from syncline.errors import ClusterError

CPU = torch.device("cpu")


def probe_as(ranks_per_node: int) -> tuple[ProbeReport, list[tuple[str, int, int]]]:
    """Probe with the ranks of the group taken for nodes of so many ranks."""
    index, world_size = dist.get_rank(), dist.get_world_size()
    rank = Rank(
        index=index,
        world_size=world_size,
        local_index=index % ranks_per_node,
        local_world_size=ranks_per_node,
    )
    announced: list[tuple[str, int, int]] = []

    def announce(what: str, done: int, parts: int) -> None:
        announced.append((what, done, parts))

    report = probe_cluster(rank, CPU, ProbeSettings.quick(), name="test", announce=announce)
    return report, announced


def probe_with_unequal_nodes() -> str:
    index, world_size = dist.get_rank(), dist.get_world_size()
    rank = Rank(index=index, world_size=world_size, local_world_size=index + 1)
    with pytest.raises(ClusterError) as caught:
        probe_cluster(rank, CPU, ProbeSettings.quick())
    return str(caught.value)


def time_by_rank() -> tuple[float, list[float]]:
    spins = 20_000 * (1 + 4 * dist.get_rank())
    point = Point(label="spin", build=lambda: lambda: sum(range(spins)))
    times = time_points([point], CPU, Pace(rounds=2, budget_s=0.01), lambda *part: None)
    return slowest(float(dist.get_rank())), times


def assert_sane(report: ProbeReport) -> None:
    device = report.cluster.device
    figures = [device.flops_per_s, device.flops_per_s_bf16, device.memory_bytes, device.memory_bytes_per_s]
    for link in report.links:
        figures += [link.fit.bytes_per_s, *(sample.seconds for sample in link.samples)]
        assert 0 <= link.fit.latency_s < 10
        assert {sample.kind for sample in link.samples} == set(PROBED)
    assert all(figure is not None and math.isfinite(figure) and figure > 0 for figure in figures)
    assert report.cluster.measured


def test_two_ranks_of_a_node(run_ranks, tmp_path):
    (report, announced), (other, _) = run_ranks(probe_as, 2, 2)
    assert_sane(report)
    assert [(level.name, level.size) for level in report.cluster.levels] == [("node", 2)]
    # Every figure is one that all ranks agreed on.
    assert dataclasses.replace(other, probe_s=report.probe_s) == report
    save_cluster(report.cluster, tmp_path / "cluster.toml")
    assert load_cluster(tmp_path / "cluster.toml") == report.cluster
    assert ProbeReport.from_json(json.dumps(report.as_dict())) == report
    assert [done for _, done, _ in announced] == list(range(announced[0][2]))


def test_two_nodes_of_one_rank(run_ranks):
    (report, _), _ = run_ranks(probe_as, 2, 1)
    assert_sane(report)
    assert [(level.name, level.size) for level in report.cluster.levels] == [("network", 2)]


def test_two_nodes_of_two_ranks(run_ranks):
    reports = run_ranks(probe_as, 4, 2)
    for report, _ in reports:
        assert_sane(report)
        assert [(level.name, level.size) for level in report.cluster.levels] == [("node", 2), ("network", 2)]
        assert report.cluster.world_size == 4


def test_one_rank_has_a_device_and_no_level(run_ranks):
    [(report, _)] = run_ranks(probe_as, 1, 1)
    assert_sane(report)
    assert report.cluster.levels == ()
    assert report.cluster.world_size == 1


def test_nodes_of_different_sizes_are_refused(run_ranks):
    for message in run_ranks(probe_with_unequal_nodes, 2):
        assert "different numbers of ranks" in message


def test_the_slowest_rank_counts(run_ranks):
    (first, times), (second, other_times) = run_ranks(time_by_rank, 2)
    assert first == second == 1.0
    assert times == other_times
    assert times[0] > 0
