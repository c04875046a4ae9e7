"""Which clusters can be measured here: those whose ranks, or one node of them, this machine can run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from syncline.cluster.device import device_type
from syncline.cluster.emulation import Emulation, parse_emulation
from syncline.cluster.machine import device_name
from syncline.cluster.presets import LOCAL, cluster_from, is_emulated, is_machines_like_this
from syncline.cluster.topology import NETWORK_LEVEL, Cluster, Level
from syncline.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A cluster, and how its ranks run on this machine."""

    cluster: Cluster
    ranks: int
    """That this machine runs at the same time."""
    emulation: Emulation | None = None
    keeps_links: bool = False
    """The cluster's links were measured before."""

    @property
    def device(self) -> torch.device:
        """What one rank computes on."""
        return torch.device("cpu") if device_type() == "cpu" else torch.device(device_type(), 0)

    @property
    def links(self) -> str:
        """Over which links the ranks talk, for people and for keys."""
        return "local" if self.emulation is None else self.cluster.name

    def with_figures(self, probed: Cluster) -> Cluster:
        """The cluster with what was measured of its device and of the links that are here."""
        if self.keeps_links:
            return self.cluster
        levels = {level.name: level for level in probed.levels}
        joined = [level for level in self.cluster.levels if level.size > 1]
        complete = all(level.name in levels for level in joined)
        missing = [level.name for level in joined if level.name not in levels]
        guessed = f"; not measured: the level {', '.join(missing)}" if missing else ""
        return dataclasses.replace(
            self.cluster,
            device=dataclasses.replace(probed.device, memory_bytes=self.cluster.device.memory_bytes),
            levels=tuple(self._joined(levels.get(level.name), level) for level in self.cluster.levels),
            measured=complete,
            source=f"measured by syncline plan on {self.ranks} ranks{guessed}",
        )

    def _joined(self, probed: Level | None, given: Level) -> Level:
        """An emulated link bursts before it slows down, so that probing finds it faster than it is."""
        if probed is None:
            return given
        probed = dataclasses.replace(probed, overlap=given.overlap)
        if self.emulation is None or self.emulation.bits_per_s is None or given.name != NETWORK_LEVEL:
            return probed
        return dataclasses.replace(probed, bytes_per_s=min(probed.bytes_per_s, given.bytes_per_s))


def find_site(text: str) -> Site:
    """The site of a cluster as users write it.

    Raises:
        ClusterError: The cluster is not here.
    """
    cluster = cluster_from(text)
    if is_emulated(text):
        emulation = parse_emulation(text)
        return Site(cluster=cluster, ranks=emulation.world_size, emulation=emulation)
    inner = cluster.levels[0].size if cluster.levels else 1
    if is_machines_like_this(text):
        return Site(cluster=cluster, ranks=inner)
    site = Site(cluster=cluster, ranks=inner, keeps_links=True)
    here = device_name(site.device)
    if not (cluster.device.name and here.startswith(cluster.device.name)):
        its = cluster.device.name or "not named"
        raise ClusterError(
            f"The ops of '{text}' cannot be timed here: its devices are {its}, this machine has {here}.\n"
            f"Leave --measure out, or plan for what is here: {LOCAL}, NxM, NxM@RATE (emulated nodes), or a "
            "file that syncline probe wrote on this machine."
        )
    return site
