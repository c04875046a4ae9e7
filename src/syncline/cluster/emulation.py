"""The text that describes an emulated cluster: `2x2@200mbit`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from syncline.errors import ClusterError

MAX_NODES = 64
MIN_BITS_PER_S = 10_000.0

_FORM = re.compile(r"(\d+)x(\d+)(?:@(\d+(?:\.\d+)?)([a-z]*))?")
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Nodes to emulate on this machine."""

    nodes: int
    ranks_per_node: int
    bits_per_s: float | None = None
    """Of each node's link, in each direction; None for no limit."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ClusterError(f"{self.nodes} nodes cannot be emulated: give 1 to {MAX_NODES}.")
        if self.ranks_per_node < 1:
            raise ClusterError(f"{self.ranks_per_node} ranks on a node cannot train: give 1 or more.")
        if self.bits_per_s is not None and self.bits_per_s < MIN_BITS_PER_S:
            raise ClusterError(
                f"Links of {self.bits_per_s:g} bit/s are too slow to emulate: give 10kbit or more."
            )

    @property
    def world_size(self) -> int:
        """How many ranks there are in all."""
        return self.nodes * self.ranks_per_node


def parse_emulation(text: str) -> Emulation:
    """Read `NODESxRANKS`, or `NODESxRANKS@RATE` with the rate of each node's link.

    Raises:
        ClusterError: The text has another form, or an impossible value.
    """
    match = _FORM.fullmatch(text.strip().lower())
    if match is None:
        raise ClusterError(
            f"'{text}' describes no emulated cluster.\n"
            "Give nodes x ranks on each, and the rate of their links if it shall be limited: "
            "2x2 or 2x2@200mbit."
        )
    nodes, ranks, amount, unit = match.groups()
    if amount is not None and unit not in _UNITS:
        raise ClusterError(
            f"'{text}' gives the rate of links in '{unit}', which is no unit of rates here.\n"
            f"Known: {', '.join(_UNITS)}."
        )
    rate = None if amount is None else float(amount) * _UNITS[unit]
    return Emulation(nodes=int(nodes), ranks_per_node=int(ranks), bits_per_s=rate)
