"""This machine as a piece of a cluster: what the operating system and torch say, and guesses for the rest.

Rates are not measured here, since that takes seconds and ranks: a CPU core gets the figures of an ordinary
one, a known GPU those of its data sheet. `syncline probe` replaces them by measured ones.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from syncline.cluster.datasheets import DEVICES, PCIE3
from syncline.cluster.device import device_type
from syncline.cluster.emulation import Emulation
from syncline.cluster.topology import NETWORK_LEVEL, NODE_LEVEL, Cluster, Device, Level
from syncline.errors import ClusterError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CPU_INFO = Path("/proc/cpuinfo")

# What one core of an ordinary server CPU with 256-bit vectors sustains while the other cores work too.
_CORE_FLOPS_PER_S = 50e9
_CORE_MEMORY_BYTES_PER_S = 8e9

# A GPU whose data sheet is not known here.
_GPU_FLOPS_PER_S = 10e12
_GPU_MEMORY_BYTES_PER_S = 500e9

# Gloo between two processes of one machine, over the loopback interface.
_LOOPBACK_BYTES_PER_S = 1e9
_LOOPBACK_LATENCY_S = 100e-6
# The cores that compute also copy what is sent.
LOOPBACK_OVERLAP = 0.1
# Two ranks on the two cores of a virtual machine, between products of matrices that take 7 ms.
_CORE_SKEW_S = 2.5e-3

# What the headers of Ethernet, IP and TCP leave of a link's rate.
_PAYLOAD = 0.94
# A gigabit Ethernet adapter in each machine.
_ETHERNET_BYTES_PER_S = _PAYLOAD * 1e9 / 8
_ETHERNET_LATENCY_S = 150e-6


def core_count() -> int:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory that the processes of this machine (or container) may use."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError) as exc:
        raise ClusterError("This system does not say how much memory it has. Give a cluster.toml.") from exc
    limit = _text(_CGROUP_LIMIT)
    return min(physical, int(limit)) if limit.isdecimal() else physical


def machine_id() -> str:
    """The same text for all processes of one machine, whatever network namespaces or nodes they are in."""
    return _text(_BOOT_ID) or platform.node()


def memory_bytes_per_rank(device: torch.device, ranks_here: int) -> int:
    """What one rank can use: its accelerator's memory, or its share of the machine's."""
    if device.type == "cpu":
        return memory_bytes() // ranks_here
    return torch.accelerator.get_memory_info(device)[1]


def device_name(device: torch.device) -> str:
    """What the maker calls the device."""
    if device.type == "cpu":
        return _cpu_name()
    return str(torch.get_device_module(device.type).get_device_name(device))


def devices_here() -> int:
    """How many devices this machine has: its accelerators, or its cores."""
    return core_count() if device_type() == "cpu" else torch.accelerator.device_count()


def machines_like_this(name: str, *, nodes: int, per_node: int) -> Cluster:
    """A cluster of nodes like this machine, with figures that are guesses.

    On a CPU machine the devices of a node share its cores and memory; of accelerators each device has one.
    """
    kind = device_type()
    device = _share_of_cores(per_node) if kind == "cpu" else _accelerator(torch.device(kind, 0))
    return Cluster(
        name=name,
        device=device,
        levels=(
            _inside(kind, per_node),
            Level(
                name=NETWORK_LEVEL,
                size=nodes,
                bytes_per_s=_ETHERNET_BYTES_PER_S / per_node,
                latency_s=_ETHERNET_LATENCY_S,
            ),
        ),
        source="not measured: this machine's memory, ordinary rates, gigabit Ethernet between nodes",
    )


def emulated_machines(name: str, emulation: Emulation) -> Cluster:
    """The emulated nodes of this machine: all their ranks share its cores, links have the rate given."""
    per_node, ranks = emulation.ranks_per_node, emulation.world_size
    bits_per_s = emulation.bits_per_s
    crowding = max(1.0, ranks / core_count())
    rate = _LOOPBACK_BYTES_PER_S / crowding if bits_per_s is None else _PAYLOAD * bits_per_s / 8 / per_node
    return Cluster(
        name=name,
        device=_share_of_cores(ranks),
        levels=(
            _inside("cpu", per_node),
            Level(
                name=NETWORK_LEVEL,
                size=emulation.nodes,
                bytes_per_s=rate,
                latency_s=_LOOPBACK_LATENCY_S * crowding,
                overlap=LOOPBACK_OVERLAP if bits_per_s is None else 1.0,
            ),
        ),
        source="not measured: this machine's memory, ordinary rates, emulated links",
    )


def _inside(kind: str, per_node: int) -> Level:
    if kind != "cpu":
        return PCIE3.level(NODE_LEVEL, per_node)
    # Loopback traffic is copied by the cores that the ranks compute on.
    crowding = max(1.0, per_node / core_count())
    return Level(
        name=NODE_LEVEL,
        size=per_node,
        bytes_per_s=_LOOPBACK_BYTES_PER_S / crowding,
        latency_s=_LOOPBACK_LATENCY_S * crowding,
        overlap=LOOPBACK_OVERLAP,
    )


def _share_of_cores(per_node: int) -> Device:
    cores = core_count() / per_node
    return Device(
        name=f"{_cpu_name()} ({cores:g} of {core_count()} cores)",
        flops_per_s=_CORE_FLOPS_PER_S * cores,
        memory_bytes=memory_bytes() // per_node,
        memory_bytes_per_s=_CORE_MEMORY_BYTES_PER_S * cores,
        skew_s=_CORE_SKEW_S * max(1.0, 1 / cores),
    )


def _accelerator(device: torch.device) -> Device:
    name = device_name(device)
    for part, spec in DEVICES.items():
        if part in name:
            return spec.device()
    return Device(
        name=name,
        flops_per_s=_GPU_FLOPS_PER_S,
        memory_bytes=memory_bytes_per_rank(device, 1),
        memory_bytes_per_s=_GPU_MEMORY_BYTES_PER_S,
    )


def _cpu_name() -> str:
    lines = _text(_CPU_INFO).splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "CPU"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
