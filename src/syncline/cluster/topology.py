"""A cluster as data: one kind of device, and the levels of links that join the devices.

Decides what a cluster *is* and what its figures mean; where the figures come from is left to
`presets`, `machine` and `probe`, and what a collective costs on them to `collectives`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

from syncline.errors import ClusterError

SCHEMA = 1
"""The version of `cluster.toml`."""

NODE_LEVEL = "node"
"""What presets and probes call the level inside a node."""
NETWORK_LEVEL = "network"
"""What presets and probes call the level between nodes."""

_LEVEL_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def _require_positive(what: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ClusterError(f"{what} is {value}; it must be a positive, finite number of {unit}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one device sustains, not what its data sheet promises; a multiply-add is 2 FLOP."""

    name: str = "device"
    """What people call it; names nothing in the program."""
    flops_per_s: float
    """Matrix products in float32."""
    memory_bytes: int
    """What one rank can use."""
    memory_bytes_per_s: float
    """Reads and writes together."""
    flops_per_s_bf16: float | None = None
    """Matrix products in bfloat16, where the device has a faster unit for them (or none, and is slower)."""
    skew_s: float = 0.0
    """How long devices wait for each other, on average, where a collective interrupts their computing: cores
    that also run everything else are never quite in step."""

    def __post_init__(self) -> None:
        _require_positive("flops_per_s of the device", self.flops_per_s, "FLOP per second")
        _require_positive("memory_bytes of the device", self.memory_bytes, "bytes")
        _require_positive("memory_bytes_per_s of the device", self.memory_bytes_per_s, "bytes per second")
        if self.flops_per_s_bf16 is not None:
            _require_positive("flops_per_s_bf16 of the device", self.flops_per_s_bf16, "FLOP per second")
        if not (math.isfinite(self.skew_s) and self.skew_s >= 0):
            raise ClusterError(f"skew_s of the device is {self.skew_s}; it must be seconds, 0 or more.")

    def matmul_flops_per_s(self, element_bytes: int) -> float:
        """The rate of matrix products on elements of 2 bytes (bfloat16) or wider ones."""
        if element_bytes <= 2 and self.flops_per_s_bf16 is not None:
            return self.flops_per_s_bf16
        return self.flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How much longer a library takes for each collective than the textbook algorithm would.

    Gloo, for example, takes more than twice as long for a reduce-scatter as a ring needs.
    """

    all_reduce: float = 1.0
    all_gather: float = 1.0
    reduce_scatter: float = 1.0
    all_to_all: float = 1.0
    broadcast: float = 1.0
    send: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _require_positive(f"slowdown of {field.name}", getattr(self, field.name), "times")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of links: it joins `size` units, each of which is all that the level inside it joins.

    The innermost level joins devices, the next joins what that level made (nodes), and so on.

    `bytes_per_s` is what **one device** can send through this level, in one direction, **while every
    device of the cluster does the same**. Contention is thus part of the figure: eight devices behind
    one 12.5 GB/s adapter have 1.56 GB/s each, eight devices with an adapter each have 12.5 GB/s each.
    A group with k members in each unit can use k such shares to leave the unit. It is also what a
    probe with all ranks at work measures.
    """

    name: str
    """Short and lower-case, for example `node` (inside a node) or `network` (between nodes)."""
    size: int
    """How many units of the level inside it are joined."""
    bytes_per_s: float
    """One device's share of the level, in one direction, when all devices send."""
    latency_s: float
    """Time of one step of a collective that does not depend on the bytes sent."""
    overlap: float = 1.0
    """The share of its traffic that can go on behind computing; little where the cores do the sending."""
    slowdown: Slowdown = Slowdown()
    """By collective, where it was measured; a group over several levels has the largest of them."""

    def __post_init__(self) -> None:
        if not _LEVEL_NAME.fullmatch(self.name):
            raise ClusterError(
                f"A level cannot be called '{self.name}'. Use lower-case letters, digits, '-' and '_', "
                "starting with a letter, for example 'node' or 'network'."
            )
        if self.size < 1:
            raise ClusterError(f"size of level '{self.name}' is {self.size}; it must be at least 1.")
        _require_positive(f"bytes_per_s of level '{self.name}'", self.bytes_per_s, "bytes per second")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ClusterError(
                f"latency_s of level '{self.name}' is {self.latency_s}; it must be a number of seconds, "
                "0 or more."
            )
        if not 0 <= self.overlap <= 1:
            raise ClusterError(
                f"overlap of level '{self.name}' is {self.overlap}; it must be a share between 0 and 1."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices and the levels of links between them, from the inside out."""

    name: str
    device: Device
    levels: tuple[Level, ...] = ()
    measured: bool = False
    """Whether the figures were measured on this cluster; if not, predictions from them say so."""
    source: str = ""
    """Where the figures come from, for people."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ClusterError(
                f"schema of cluster '{self.name}' is {self.schema}; this version of Syncline reads {SCHEMA}."
            )
        names = [level.name for level in self.levels]
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles:
            raise ClusterError(
                f"Cluster '{self.name}' has several levels called '{doubles[0]}'. Give each its own name."
            )

    @property
    def world_size(self) -> int:
        """How many devices there are, and so how many ranks."""
        return math.prod(level.size for level in self.levels)

    def level(self, name: str) -> Level:
        """The level of that name."""
        for level in self.levels:
            if level.name == name:
                return level
        known = ", ".join(level.name for level in self.levels) or "none"
        raise ClusterError(f"Cluster '{self.name}' has no level '{name}'. Its levels: {known}.")

    def unit_size(self, level_index: int) -> int:
        """How many devices are in one unit that the level joins: 1 for the innermost level."""
        return math.prod(level.size for level in self.levels[:level_index])
