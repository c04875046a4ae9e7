"""Published figures of known hardware, and what fraction of them programs sustain.

The peaks are the makers' own. The fractions are round estimates from public GEMM and nccl-tests results,
kept apart from the peaks so that each can be judged and corrected alone. None of it was measured on the
user's cluster, so clusters made here have `measured = false`.

`LinkSpec.peak_bytes_per_s` is for one device in one direction with all devices sending, as everywhere
(`Level`): an adapter that eight devices share counts as an eighth for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from syncline.cluster.topology import NETWORK_LEVEL, NODE_LEVEL, Cluster, Device, Level

# The rest goes to the driver's context, to communication buffers and to fragmentation.
USABLE_MEMORY = 0.92
_GIB = 1 << 30
_GBIT_PER_S = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device by its data sheet; rates are dense ones, without structured sparsity."""

    name: str
    peak_flops_per_s: float
    """Float32 without TF32, which torch leaves off by default."""
    memory_bytes: int
    peak_memory_bytes_per_s: float
    source: str
    peak_flops_per_s_bf16: float | None = None
    sustained_flops: float = 0.80
    sustained_bf16: float = 0.70
    sustained_memory: float = 0.85

    def device(self) -> Device:
        """The device with what it sustains."""
        bf16 = self.peak_flops_per_s_bf16
        return Device(
            name=self.name,
            flops_per_s=self.peak_flops_per_s * self.sustained_flops,
            flops_per_s_bf16=None if bf16 is None else bf16 * self.sustained_bf16,
            memory_bytes=int(self.memory_bytes * USABLE_MEMORY),
            memory_bytes_per_s=self.peak_memory_bytes_per_s * self.sustained_memory,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One level of links by its data sheet."""

    peak_bytes_per_s: float
    sustained: float
    latency_s: float
    source: str

    def level(self, name: str, size: int) -> Level:
        """The level with what it sustains."""
        return Level(
            name=name,
            size=size,
            bytes_per_s=self.peak_bytes_per_s * self.sustained,
            latency_s=self.latency_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A kind of node, any number of which make a cluster."""

    device: DeviceSpec
    per_node: int
    inside: LinkSpec
    between: LinkSpec

    def cluster(self, name: str, nodes: int) -> Cluster:
        """So many nodes of this kind."""
        return Cluster(
            name=name,
            device=self.device.device(),
            levels=(
                self.inside.level(NODE_LEVEL, self.per_node),
                self.between.level(NETWORK_LEVEL, nodes),
            ),
            source=(
                f"not measured: data sheets and typical efficiency. Device: {self.device.source}. "
                f"Inside a node: {self.inside.source}. Between nodes: {self.between.source}"
            ),
        )


DEVICES: dict[str, DeviceSpec] = {
    "H100": DeviceSpec(
        name="NVIDIA H100 SXM5 80GB",
        peak_flops_per_s=66.9e12,
        peak_flops_per_s_bf16=989.4e12,
        # Power limits the clock in long bfloat16 products.
        sustained_bf16=0.65,
        memory_bytes=80 * _GIB,
        peak_memory_bytes_per_s=3.35e12,
        source="NVIDIA H100 Tensor Core GPU data sheet",
    ),
    "A100": DeviceSpec(
        name="NVIDIA A100 SXM4 80GB",
        peak_flops_per_s=19.5e12,
        peak_flops_per_s_bf16=312e12,
        memory_bytes=80 * _GIB,
        peak_memory_bytes_per_s=2.039e12,
        source="NVIDIA A100 Tensor Core GPU data sheet",
    ),
    # Volta and Turing have no unit for bfloat16; torch computes it at no better than the float32 rate.
    "V100": DeviceSpec(
        name="NVIDIA V100 SXM2 32GB",
        peak_flops_per_s=15.7e12,
        memory_bytes=32 * _GIB,
        peak_memory_bytes_per_s=0.9e12,
        source="NVIDIA V100 Tensor Core GPU data sheet",
    ),
    "2080 Ti": DeviceSpec(
        name="NVIDIA GeForce RTX 2080 Ti",
        # 4352 cores, 2 FLOP a cycle, 1.545 GHz boost of the reference card.
        peak_flops_per_s=13.45e12,
        memory_bytes=11 * _GIB,
        peak_memory_bytes_per_s=616e9,
        source="NVIDIA Turing GPU architecture white paper",
    ),
    "1080 Ti": DeviceSpec(
        name="NVIDIA GeForce GTX 1080 Ti",
        # 3584 cores, 2 FLOP a cycle, 1.582 GHz boost.
        peak_flops_per_s=11.34e12,
        memory_bytes=11 * _GIB,
        peak_memory_bytes_per_s=484e9,
        source="NVIDIA GeForce GTX 1080 Ti specifications",
    ),
}
"""By a part of the name that the driver reports."""

# One direction of an x16 slot of the third generation: 16 lanes, 8 GT/s, 128b/130b coding.
_PCIE3_X16_BYTES_PER_S = 15.75e9

PCIE3 = LinkSpec(
    peak_bytes_per_s=_PCIE3_X16_BYTES_PER_S,
    # Peer-to-peer through switches whose way up is shared.
    sustained=0.60,
    latency_s=3e-6,
    source="PCI Express 3.0 x16, peer to peer",
)
_PCIE3_THROUGH_HOST = LinkSpec(
    peak_bytes_per_s=_PCIE3_X16_BYTES_PER_S,
    # Without peer-to-peer every transfer goes to host memory and back, and all devices do so at once.
    sustained=0.30,
    latency_s=6e-6,
    source="PCI Express 3.0 x16 through host memory (GeForce RTX 20 has no peer-to-peer over PCIe)",
)
_EDR_SHARED_BY_8 = LinkSpec(
    peak_bytes_per_s=100 * _GBIT_PER_S / 8,
    sustained=0.90,
    latency_s=6e-6,
    source="one InfiniBand EDR adapter (100 Gbit/s) for 8 devices (assumed: the paper names no generation)",
)
_GIGABIT_SHARED_BY_4 = LinkSpec(
    peak_bytes_per_s=1 * _GBIT_PER_S / 4,
    # Headers of Ethernet, IP and TCP leave 94 %.
    sustained=0.94,
    latency_s=50e-6,
    source="one gigabit Ethernet adapter for 4 devices",
)

PRESETS: dict[str, Preset] = {
    "h100-dgx": Preset(
        device=DEVICES["H100"],
        per_node=8,
        inside=LinkSpec(
            peak_bytes_per_s=450e9, sustained=0.80, latency_s=1.5e-6, source="NVLink 4, 900 GB/s both ways"
        ),
        between=LinkSpec(
            peak_bytes_per_s=400 * _GBIT_PER_S,
            sustained=0.90,
            latency_s=5e-6,
            source="DGX H100 data sheet: 8 adapters of 400 Gbit/s, one for each device",
        ),
    ),
    "a100-dgx": Preset(
        device=DEVICES["A100"],
        per_node=8,
        inside=LinkSpec(
            peak_bytes_per_s=300e9, sustained=0.78, latency_s=1.5e-6, source="NVLink 3, 600 GB/s both ways"
        ),
        between=LinkSpec(
            peak_bytes_per_s=200 * _GBIT_PER_S,
            sustained=0.90,
            latency_s=5e-6,
            source="DGX A100 data sheet: 8 adapters of 200 Gbit/s, one for each device",
        ),
    ),
    "v100-dgx1": Preset(
        device=DEVICES["V100"],
        per_node=8,
        inside=LinkSpec(
            peak_bytes_per_s=150e9, sustained=0.80, latency_s=2e-6, source="NVLink 2, 300 GB/s both ways"
        ),
        between=LinkSpec(
            peak_bytes_per_s=4 * 100 * _GBIT_PER_S / 8,
            sustained=0.90,
            latency_s=6e-6,
            source="DGX-1 data sheet: 4 adapters of 100 Gbit/s for 8 devices",
        ),
    ),
    "gtx1080ti-pcie": Preset(device=DEVICES["1080 Ti"], per_node=8, inside=PCIE3, between=_EDR_SHARED_BY_8),
    "rtx2080ti-pcie": Preset(
        device=DEVICES["2080 Ti"], per_node=8, inside=_PCIE3_THROUGH_HOST, between=_EDR_SHARED_BY_8
    ),
    "slow-ethernet": Preset(
        device=DEVICES["1080 Ti"], per_node=4, inside=PCIE3, between=_GIGABIT_SHARED_BY_4
    ),
}
"""Kinds of nodes by name."""
