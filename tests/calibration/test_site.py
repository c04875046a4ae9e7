"""Which clusters can be measured here, and what measuring changes of them."""

import dataclasses
from pathlib import Path

import pytest

from syncline.calibration.site import find_site
from syncline.cluster.cluster_file import save_cluster
from syncline.cluster.machine import device_name
from syncline.cluster.topology import Cluster, Device, Level
from syncline.errors import ClusterError

PROBED = Cluster(
    name="probed",
    device=Device(name="measured", flops_per_s=1e9, memory_bytes=1, memory_bytes_per_s=1e9),
    levels=(Level(name="node", size=3, bytes_per_s=5e9, latency_s=1e-5),),
    measured=True,
)


def test_nodes_like_this_one_run_one_node_here_and_keep_their_guessed_network():
    site = find_site("2x3")
    assert (site.ranks, site.emulation, site.links) == (3, None, "local")
    cluster = site.with_figures(PROBED)
    assert cluster.device.flops_per_s == 1e9
    assert cluster.device.memory_bytes == site.cluster.device.memory_bytes
    assert cluster.level("node").bytes_per_s == 5e9
    assert cluster.level("network") == site.cluster.level("network")
    assert not cluster.measured
    assert "network" in cluster.source
    assert find_site("1x3").with_figures(PROBED).measured


def test_all_ranks_of_emulated_nodes_run_here_and_links_have_at_most_their_rate():
    site = find_site("2x2@100mbit")
    assert site.ranks == 4
    burst = Level(name="network", size=2, bytes_per_s=1e9, latency_s=1e-5)
    probed = dataclasses.replace(
        PROBED, levels=(Level(name="node", size=2, bytes_per_s=5e9, latency_s=0), burst)
    )
    assert site.with_figures(probed).level("network").bytes_per_s == pytest.approx(0.94 * 100e6 / 8 / 2)


def test_a_file_that_was_measured_here_keeps_its_links(tmp_path: Path):
    here = dataclasses.replace(PROBED.device, name=device_name(find_site("1x1").device))
    save_cluster(dataclasses.replace(PROBED, device=here), tmp_path / "here.toml")
    site = find_site(str(tmp_path / "here.toml"))
    assert site.ranks == 3
    assert site.with_figures(dataclasses.replace(PROBED, levels=())) == site.cluster


def test_devices_that_are_not_here_cannot_be_timed():
    with pytest.raises(ClusterError, match=r"cannot be timed here.*A100"):
        find_site("a100-dgx:2")
