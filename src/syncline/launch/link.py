"""The emulated network: nodes joined by a switch, with links of a limited rate, and what went over them.

Nodes and the switch are network namespaces. Each node's link is a pair of virtual interfaces, one end
in the node and one at the switch, and a token bucket limits what either end sends. No interface is
ever made outside these namespaces, and no traffic leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from syncline.cluster.emulation import Emulation
from syncline.launch.namespaces import network_namespace, run_batch

INTERFACE = "eth0"
"""Of a node's link, in the node."""
MTU_BYTES = 9000
"""Jumbo frames: headers take 1 % of the rate instead of 5 %."""
BURST_S = 0.002
QUEUE_S = 0.1
MIN_QUEUE_BYTES = 1_000_000
FIRST_ADDRESS = 101
"""Three digits for all nodes: torch's rendezvous orders nodes by their addresses, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBytes:
    """Bytes that were sent, headers included."""

    inside: int
    """Between ranks of the same node."""
    between: int
    """Over the links between nodes."""

    def __add__(self, other: LinkBytes) -> LinkBytes:
        return LinkBytes(inside=self.inside + other.inside, between=self.between + other.between)

    def __sub__(self, other: LinkBytes) -> LinkBytes:
        return LinkBytes(inside=self.inside - other.inside, between=self.between - other.between)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNode:
    """One node of the emulated network."""

    index: int
    address: str
    holder: int
    """The process that holds its network namespace."""


def node_address(index: int) -> str:
    """The address of a node, counted from 0."""
    return f"10.213.0.{FIRST_ADDRESS + index}"


@contextmanager
def emulated_network(emulation: Emulation) -> Iterator[list[EmulatedNode]]:
    """The nodes of an emulated cluster, until the context ends.

    Raises:
        ClusterError: The network cannot be made.
    """
    with ExitStack() as stack:
        switch = stack.enter_context(network_namespace())
        holders = [stack.enter_context(network_namespace()) for _ in range(emulation.nodes)]
        nodes = [
            EmulatedNode(index=index, address=node_address(index), holder=holder)
            for index, holder in enumerate(holders)
        ]
        run_batch(switch, "ip", _switch_lines(nodes))
        for node in nodes:
            run_batch(node.holder, "ip", _node_lines(node))
        if emulation.bits_per_s is not None:
            ports = [f"port{node.index}" for node in nodes]
            run_batch(switch, "tc", [_limit_line(port, emulation.bits_per_s) for port in ports])
            for node in nodes:
                run_batch(node.holder, "tc", [_limit_line(INTERFACE, emulation.bits_per_s)])
        yield nodes


def read_link_bytes(process: int | str = "self") -> LinkBytes:
    """What the node of a process has sent so far; a rank reads its own node's count live."""
    sent = {}
    for line in Path(f"/proc/{process}/net/dev").read_text().splitlines()[2:]:
        name, _, counters = line.partition(":")
        # Eight counters of what was received come first.
        sent[name.strip()] = int(counters.split()[8])
    return LinkBytes(inside=sent.get("lo", 0), between=sent.get(INTERFACE, 0))


def _switch_lines(nodes: list[EmulatedNode]) -> list[str]:
    lines = [
        "link add switch type bridge stp_state 0 mcast_snooping 0",
        f"link set switch mtu {MTU_BYTES} up",
    ]
    for node in nodes:
        port = f"port{node.index}"
        peer = f"peer name {INTERFACE} mtu {MTU_BYTES} netns {node.holder}"
        lines += [
            f"link add {port} mtu {MTU_BYTES} type veth {peer}",
            f"link set {port} master switch",
            f"link set {port} up",
        ]
    return lines


def _node_lines(node: EmulatedNode) -> list[str]:
    return [
        "link set lo up",
        f"address add {node.address}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up",
    ]


def _limit_line(interface: str, bits_per_s: float) -> str:
    """A token bucket, as small as its timer allows, so that short transfers meet the rate too.

    It cuts what is larger than the bucket into frames. The queue holds what a few connections have
    under way: those who share a link wait for each other, and frames are dropped hardly ever.
    """
    bytes_per_s = bits_per_s / 8
    burst = max(2 * MTU_BYTES, round(bytes_per_s * BURST_S))
    limit = max(MIN_QUEUE_BYTES, round(bytes_per_s * QUEUE_S))
    return f"qdisc add dev {interface} root tbf rate {bits_per_s:.0f}bit burst {burst}b limit {limit}b"
