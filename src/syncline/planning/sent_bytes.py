"""How many bytes a plan sends, by level: its communication on links of one byte a second.

Where one level has that rate, all others are infinitely fast and no message waits, the seconds of all
communication are the bytes that one device sends through the level.
"""

from __future__ import annotations

from dataclasses import replace

from syncline.cluster.topology import Cluster, Slowdown
from syncline.planning.repricing import Repricer

_INFINITE = 1e30


def sent_bytes(repricer: Repricer) -> dict[str, float]:
    """Bytes that all devices together send in a step of the plan, for each level that joins anything."""
    cluster = repricer.cluster
    found: dict[str, float] = {}
    for level in cluster.levels:
        prediction = repricer.predict(_only(cluster, level.name))[0]
        if level.size > 1 and prediction is not None:
            times = prediction.times
            each = times.redistribute_s + times.exchange_s + times.parameters_s
            found[level.name] = each * cluster.world_size
    return found


def _only(cluster: Cluster, name: str) -> Cluster:
    levels = tuple(
        replace(
            level,
            latency_s=0.0,
            bytes_per_s=1.0 if level.name == name else _INFINITE,
            slowdown=Slowdown(),
        )
        for level in cluster.levels
    )
    return replace(cluster, levels=levels, device=replace(cluster.device, memory_bytes_per_s=_INFINITE))
