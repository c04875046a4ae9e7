"""Measures a cluster on live ranks: what its devices sustain, and what each level of links carries.

Runs inside an initialised process group, on any backend. All ranks compute, and all groups of a level
communicate, at the same time, because that is what training does: a figure is what one rank gets while the
others are as busy.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from syncline.cluster.collectives import ring_terms
from syncline.cluster.fitting import LinkSample, fit_link
from syncline.cluster.machine import LOOPBACK_OVERLAP, device_name, machine_id, memory_bytes_per_rank
from syncline.cluster.probe_points import (
    PROBED,
    LinkGroup,
    collective_point,
    interrupted_point,
    matmul_point,
    stream_point,
)
from syncline.cluster.probe_report import LinkReport, ProbeReport
from syncline.cluster.rank import Rank
from syncline.cluster.timing import Announce, Pace, Point, slowest, time_points
from syncline.cluster.topology import NETWORK_LEVEL, NODE_LEVEL, Cluster, Device, Level
from syncline.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What is timed, and how long each figure may take."""

    matmul_sizes: tuple[int, ...]
    """Rows of the square matrices in float32; the best sustained rate counts."""
    bf16_size: int
    """The one size in bfloat16: a device without a unit for it is slow, and large products take long."""
    stream_bytes: int
    """Size of each of the three arrays of the memory test; larger than any cache."""
    message_bytes: tuple[int, ...] = (4 << 10, 64 << 10, 512 << 10, 4 << 20, 48 << 20)
    """Sizes of the largest buffer of a collective; the last does not fit into caches, as gradients do not."""
    pace: Pace = field(default_factory=Pace)
    skew_size: int = 640
    """Rows of the matrices between whose products ranks meet: some milliseconds on a core."""
    skew_pace: Pace = field(default_factory=lambda: Pace(budget_s=0.5, min_repeats=20))

    @classmethod
    def thorough(cls, kind: str) -> ProbeSettings:
        """For figures to plan with: under 30 seconds on two ranks of a laptop."""
        if kind == "cpu":
            return cls(matmul_sizes=(256, 512, 1024), bf16_size=256, stream_bytes=64 << 20)
        return cls(matmul_sizes=(2048, 4096, 8192), bf16_size=8192, stream_bytes=512 << 20)

    @classmethod
    def quick(cls) -> ProbeSettings:
        """For figures of the right order, in about a second."""
        return cls(
            matmul_sizes=(128,),
            bf16_size=64,
            stream_bytes=16 << 20,
            message_bytes=(4 << 10, 256 << 10, 1 << 20),
            pace=Pace(rounds=1, budget_s=0.01, min_repeats=3, max_repeats=20),
            skew_pace=Pace(rounds=2, budget_s=0.3, min_repeats=10),
        )


def probe_cluster(
    rank: Rank,
    device: torch.device,
    settings: ProbeSettings,
    *,
    name: str = "probed",
    announce: Announce = lambda what, done, parts: None,
) -> ProbeReport:
    """Measures the cluster that the ranks of the default process group make up. All ranks must call it.

    Args:
        rank: This process among the ranks; says what is a node.
        device: What this rank computes on.
        settings: What to time.
        name: What the cluster will be called.
        announce: Called before each part.

    Raises:
        ClusterError: The nodes have different numbers of ranks, so there are no levels to speak of.
    """
    start = time.perf_counter()
    groups = _make_groups(rank)
    device_points = _device_points(device, settings)
    link_points = [point for group in groups for point in _link_points(group, device, settings)]
    seconds = time_points([*device_points, *link_points], device, settings.pace, announce)
    measured, matmul = _device_figures(seconds[: len(device_points)], device, settings)
    links = _link_figures(seconds[len(device_points) :], groups, settings)
    for group in groups:
        dist.destroy_process_group(group.handle)
    levels = tuple(_level(link, device) for link in links)
    skew_s = _skew_s(device, levels, settings) if levels else 0.0
    cluster = Cluster(
        name=name,
        device=dataclasses.replace(measured, skew_s=skew_s),
        levels=levels,
        measured=True,
        source=f"measured by syncline probe; nodes: {rank.nodes}, ranks on each: {rank.local_world_size}",
    )
    probe_s = slowest(time.perf_counter() - start)
    return ProbeReport(cluster=cluster, matmul_flops_per_s=matmul, links=links, probe_s=probe_s)


def _make_groups(rank: Rank) -> list[LinkGroup]:
    """This rank's group on each level that joins anything: its node, and its place on all nodes."""
    per_node = rank.local_world_size
    if slowest(per_node) != -slowest(-per_node) or rank.world_size % per_node:
        raise ClusterError(
            f"The nodes have different numbers of ranks ({rank.world_size} in all). "
            "Start equally many on each node."
        )
    nodes = [list(range(first, first + per_node)) for first in range(0, rank.world_size, per_node)]
    places = [list(ranks) for ranks in zip(*nodes, strict=True)]
    groups = []
    for level, members in ((NODE_LEVEL, nodes), (NETWORK_LEVEL, places)):
        if len(members[0]) > 1:
            mine = next(tuple(ranks) for ranks in members if rank.index in ranks)
            handle, _ = dist.new_subgroups_by_enumeration(members)
            assert isinstance(handle, dist.ProcessGroup)
            groups.append(LinkGroup(level=level, ranks=mine, handle=handle))
    return groups


def _device_points(device: torch.device, settings: ProbeSettings) -> list[Point]:
    return [
        *(matmul_point(size, torch.float32, device) for size in settings.matmul_sizes),
        matmul_point(settings.bf16_size, torch.bfloat16, device),
        stream_point(settings.stream_bytes, device),
    ]


def _device_figures(
    seconds: Sequence[float], device: torch.device, settings: ProbeSettings
) -> tuple[Device, dict[int, float]]:
    *float32_s, bf16_s, stream_s = seconds
    matmul = {size: 2 * size**3 / s for size, s in zip(settings.matmul_sizes, float32_s, strict=True)}
    figures = Device(
        name=device_name(device),
        flops_per_s=_rounded(max(matmul.values())),
        flops_per_s_bf16=_rounded(2 * settings.bf16_size**3 / bf16_s),
        memory_bytes=memory_bytes_per_rank(device, _ranks_here()),
        memory_bytes_per_s=_rounded(3 * settings.stream_bytes / stream_s),
    )
    return figures, matmul


def _ranks_here() -> int:
    """How many ranks share this machine: those of several nodes if they are emulated."""
    machines: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(machines, machine_id())
    return machines.count(machine_id())


def _message_bytes(group: LinkGroup, settings: ProbeSettings) -> list[int]:
    """The sizes to send, each divisible into equal float32 parts for all members."""
    unit = 4 * len(group.ranks)
    return [max(1, nbytes // unit) * unit for nbytes in settings.message_bytes]


def _link_points(group: LinkGroup, device: torch.device, settings: ProbeSettings) -> list[Point]:
    return [
        collective_point(kind, nbytes, group, device)
        for kind in PROBED
        for nbytes in _message_bytes(group, settings)
    ]


def _link_figures(
    seconds: Sequence[float], groups: Sequence[LinkGroup], settings: ProbeSettings
) -> tuple[LinkReport, ...]:
    remaining = iter(seconds)
    reports = []
    for group in groups:
        samples = tuple(
            LinkSample(kind=kind, members=len(group.ranks), nbytes=nbytes, seconds=next(remaining))
            for kind in PROBED
            for nbytes in _message_bytes(group, settings)
        )
        reports.append(LinkReport(level=group.level, fit=fit_link(samples), samples=samples))
    return tuple(reports)


def _skew_s(device: torch.device, levels: Sequence[Level], settings: ProbeSettings) -> float:
    """What a small collective between computations takes, less those and its own time when nobody is late."""
    alone, between = time_points(
        [
            matmul_point(settings.skew_size, torch.float32, device),
            interrupted_point(settings.skew_size, device),
        ],
        device,
        settings.skew_pace,
        lambda what, done, parts: None,
    )
    steps, _ = ring_terms("all_reduce", dist.get_world_size())
    return _rounded(max(0.0, between - alone - steps * max(level.latency_s for level in levels)))


def _level(link: LinkReport, device: torch.device) -> Level:
    is_loopback = device.type == "cpu" and link.level == NODE_LEVEL
    return Level(
        name=link.level,
        size=link.samples[0].members,
        bytes_per_s=_rounded(link.fit.bytes_per_s),
        latency_s=_rounded(link.fit.latency_s),
        overlap=LOOPBACK_OVERLAP if is_loopback else 1.0,
        slowdown=link.fit.slowdown,
    )


def _rounded(figure: float) -> float:
    """Four digits: more would be noise, and hard to read in a file."""
    return float(f"{figure:.4g}")
