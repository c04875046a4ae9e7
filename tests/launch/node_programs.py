"""What ranks of emulated nodes run in the tests of exchanges. Each function gets one string."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nodes_of_ranks import FEATURES, open_step
from syncline.cluster.rank import current_rank
from syncline.launch.link import read_link_bytes
from syncline.strategies.averaging.buckets import Buckets
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.strategies.averaging.exchange import Exchange
from syncline.strategies.averaging.nodes import NodeGroups, find_nodes
from syncline.strategies.averaging.wire import Wire

NUMBERS = 3_000_000
EXCHANGES = 4


def count_bytes(folder: str) -> None:
    """What this node's link carries in each of some exchanges, by type of the wire."""
    dist.init_process_group("gloo")
    rank = current_rank()
    groups = NodeGroups(rank, find_nodes(rank, None))
    tensors = [torch.full((NUMBERS // 3,), float(groups.node)) for _ in range(3)]
    buckets = Buckets(tensors, bucket_bytes=NUMBERS * 3)
    told: dict[str, Any] = {"node": groups.node, "buckets": len(buckets)}
    for wire in ("fp32", "bf16", "fp16"):
        wires = [Wire(wire, groups.count, torch.zeros_like(values)) for values in buckets.read()]
        exchange = Exchange(groups)
        told[wire] = []
        for _ in range(EXCHANGES):
            dist.barrier()
            before = read_link_bytes()
            means = exchange.average(wires, buckets.read())
            dist.barrier()
            told[wire].append(read_link_bytes().between - before.between)
            assert all(bool((average.mean == 0.5).all()) for average in means)
        assert exchange.times.exchanges == EXCHANGES
    Path(folder, f"told-{os.environ['RANK']}").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def choose_rates(folder: str) -> None:
    """The rates that `sync-every=auto` comes to from what exchanges took in the warm-up."""
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(FEATURES, 20_000), nn.Linear(20_000, 1))
    step = open_step(
        "daso:sync-every=auto,warm-up=3,cool-down=0,review-every=50",
        model=model,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
        steps=100,
    )
    assert isinstance(step, CyclingStep)
    for _ in range(4):
        step((torch.ones(4, FEATURES), torch.zeros(4, 1)))
    assert step.weights.under_way is not None
    told = asdict(step.schedule.rates) | {
        "due": step.weights.under_way.due,
        "gradient_steps": step.schedule.gradient_steps,
    }
    Path(folder, f"told-{os.environ['RANK']}").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def merge_late(folder: str) -> None:
    """Exchanges that are merged in the step in which the next starts, and have not arrived by then."""
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(FEATURES, 20_000), nn.BatchNorm1d(20_000), nn.Linear(20_000, 1))
    step = open_step(
        "daso:merge=paper,sync-every=1,warm-up=0,cool-down=0,review-every=50",
        node_size=2,
        model=model,
        make_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-4),
    )
    for _ in range(4):
        step((torch.randn(4, FEATURES), torch.zeros(4, 1)))
    told = {"exposed_s": step.exposed_s, "sum": sum(each.sum().item() for each in model.parameters())}
    Path(folder, f"told-{os.environ['RANK']}").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()
