"""Graphs and clusters to plan for, small enough to compute by hand or named as users name them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from syncline.cluster.topology import Cluster, Device, Level
from syncline.graph import OpGraph, capture, capture_training
from syncline.planning.axes import SearchAxes, search_axes
from syncline.planning.folding import Folding
from syncline.planning.planner import exposed_share, known_strategies
from syncline.planning.search import Search
from syncline.planning.table_builder import build_tables
from syncline.workloads.load import load_workload


def made_up_cluster(
    nodes: int = 2,
    per_node: int = 2,
    *,
    node_bytes_per_s: float = 100.0,
    network_bytes_per_s: float = 10.0,
    latency_s: float = 0.0,
    flops_per_s: float = 1e3,
    memory_bytes: int = 10**12,
    memory_bytes_per_s: float = 1e3,
) -> Cluster:
    return Cluster(
        name="made-up",
        device=Device(
            flops_per_s=flops_per_s, memory_bytes=memory_bytes, memory_bytes_per_s=memory_bytes_per_s
        ),
        levels=(
            Level(name="node", size=per_node, bytes_per_s=node_bytes_per_s, latency_s=latency_s),
            Level(name="network", size=nodes, bytes_per_s=network_bytes_per_s, latency_s=latency_s),
        ),
    )


def plausible_cluster(
    nodes: int = 2,
    per_node: int = 4,
    *,
    node_speed: float = 1.0,
    network_speed: float = 1.0,
    memory_bytes: int = 10**12,
) -> Cluster:
    """Fast devices on slow links, so that every kind of split is worth while somewhere."""
    return Cluster(
        name="plausible",
        device=Device(flops_per_s=5e12, memory_bytes=memory_bytes, memory_bytes_per_s=4e11),
        levels=(
            Level(name="node", size=per_node, bytes_per_s=2e10 * node_speed, latency_s=3e-6),
            Level(name="network", size=nodes, bytes_per_s=2e9 * network_speed, latency_s=8e-6),
        ),
    )


@cache
def builtin_graph(name: str, batch: int) -> OpGraph:
    """A built-in model and its loss, captured without memory."""
    workload = load_workload(name)
    spec = workload.input
    assert spec is not None
    if spec.kind in ("image", "features"):
        inputs, targets = torch.empty(batch, *spec.shape, device="meta"), ids(batch)
    else:
        sequences = tuple(ids(batch, length) for length in spec.shape)
        inputs = sequences if len(sequences) > 1 else sequences[0]
        targets = ids(batch, spec.shape[-1])
    return capture_training(workload.build_model("meta"), workload.compute_loss, (inputs, targets))


def ids(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.long, device="meta")


def stack_of_linears(widths: tuple[int, ...], batch: int) -> OpGraph:
    """Linear layers with ReLU between them, and cross entropy."""
    layers: list[nn.Module] = []
    with torch.device("meta"):
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        model = nn.Sequential(*layers[:-1])
        inputs = (torch.empty(batch, widths[0]), torch.empty(batch, dtype=torch.long))
    return capture(model, inputs, loss=F.cross_entropy)


def search_of(graph: OpGraph, cluster: Cluster, folding: Folding | None = None) -> Search:
    """A search ready to solve, as `make_plan` prepares it."""
    axes = search_axes(cluster)
    known = known_strategies(graph, axes)
    extra = {op.id: [shardings[op.id] for _, shardings in known] for op in graph.ops}
    search = Search(build_tables(graph, axes, extra=extra, folding=folding))
    search.exposed_share = exposed_share(search, known[0][1])
    return search


def two_by_two(**figures: float) -> SearchAxes:
    """The axes `network.0` and `node.0`, of two each."""
    return search_axes(made_up_cluster(**figures))  # type: ignore[arg-type]
