"""How many bytes this process has sent to other ranks, by level, measured without special rights.

The kernel counts the bytes that each TCP connection has delivered. Gloo and torch's store talk over
TCP, so their sum is what a rank sent; other connections of the process, to a tracking server say,
count too. A connection that opens and closes between two looks is missed. Linux only.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from functools import cache

from syncline.cluster.topology import NETWORK_LEVEL, NODE_LEVEL

_BYTES_ACKED_OFFSET = 120
"""Of `tcpi_bytes_acked`, 64 bits, in the kernel's `struct tcp_info`."""


class TrafficMeter:
    """Counts what this process sends from the meter's making on."""

    def __init__(self) -> None:
        self._baseline = _read_connections() or {}
        self._last = dict(self._baseline)

    def sent(self) -> dict[str, int] | None:
        """Bytes sent since the meter was made, by level; None where the system does not count them.

        A connection that is closed counts with what was last seen of it. So look before ranks part:
        the first one to end closes the connections of all others to it.
        """
        now = _read_connections()
        if now is None:
            return None
        self._last |= now
        totals = {NODE_LEVEL: 0, NETWORK_LEVEL: 0}
        for connection, sent in self._last.items():
            totals[connection[1]] += sent - self._baseline.get(connection, 0)
        return totals


def _read_connections() -> dict[tuple[str, str], int] | None:
    """Bytes that the peer has acknowledged, by the connection's inode and level."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
        return None
    connections = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            inode = os.readlink(f"/proc/self/fd/{name}")
            if inode.startswith("socket:"):
                level, sent = _read_connection(int(name))
                connections[inode, level] = sent
        except (OSError, struct.error):
            # Closed in the meantime, not TCP, not connected, or a kernel that does not count.
            continue
    return connections


def _read_connection(descriptor: int) -> tuple[str, int]:
    # With NONBLOCK Python leaves the mode of the connection, which is shared with its owner, alone.
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    # The family is left for Python to find out: told the wrong one, it cuts IPv6 addresses short.
    with socket.socket(type=kind, fileno=os.dup(descriptor)) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        peer = connection.getpeername()[0]
    (sent,) = struct.unpack_from("=Q", info, _BYTES_ACKED_OFFSET)
    return (NODE_LEVEL if _is_own_address(peer) else NETWORK_LEVEL), sent


@cache
def _is_own_address(address: str) -> bool:
    """Whether an address is one of this host: only those can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
