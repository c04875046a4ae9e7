from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from syncline.cluster import machine
from syncline.cluster.cluster_file import save_cluster
from syncline.cluster.datasheets import PRESETS
from syncline.cluster.machine import core_count, machines_like_this, memory_bytes
from syncline.cluster.presets import cluster_from, preset_names
from syncline.errors import ClusterError

needs_cpu_only = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="describes a machine without GPU"
)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_makes_a_cluster_of_any_number_of_nodes(name):
    one, four = cluster_from(name), cluster_from(f"{name}:4")
    assert four.world_size == 4 * one.world_size
    assert [level.name for level in four.levels] == ["node", "network"]
    assert four.level("network").size == 4
    assert not four.measured
    assert four.source.startswith("not measured")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_sustain_less_than_their_data_sheets(name):
    preset = PRESETS[name]
    device = preset.device.device()
    assert device.flops_per_s < preset.device.peak_flops_per_s
    assert device.memory_bytes < preset.device.memory_bytes
    assert device.memory_bytes_per_s < preset.device.peak_memory_bytes_per_s
    for link in (preset.inside, preset.between):
        assert link.level("any", 2).bytes_per_s < link.peak_bytes_per_s


def test_the_systems_of_the_paper_have_eight_devices_a_node_and_one_slower_bus():
    gtx, rtx = cluster_from("gtx1080ti-pcie:8"), cluster_from("rtx2080ti-pcie:8")
    assert gtx.world_size == rtx.world_size == 64
    assert gtx.level("network").bytes_per_s == rtx.level("network").bytes_per_s
    assert gtx.level("node").bytes_per_s > rtx.level("node").bytes_per_s


@needs_cpu_only
def test_the_short_form_divides_this_machine_among_its_devices():
    cluster = cluster_from("2x4")
    assert [level.size for level in cluster.levels] == [4, 2]
    assert cluster.device.memory_bytes == memory_bytes() // 4
    assert cluster.name == "2x4"
    assert cluster_from("2x1").device.flops_per_s == pytest.approx(4 * cluster.device.flops_per_s)


@needs_cpu_only
def test_this_machine_has_a_device_for_each_core():
    assert cluster_from("local").world_size == core_count()
    assert core_count() <= (os.cpu_count() or 1)


def test_a_container_limits_the_memory(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CGROUP_LIMIT", limit)
    physical = memory_bytes()
    limit.write_text("max\n")
    assert memory_bytes() == physical
    limit.write_text("1000000\n")
    assert memory_bytes() == 1_000_000


def test_a_known_accelerator_has_the_figures_of_its_data_sheet(monkeypatch):
    monkeypatch.setattr(machine, "device_type", lambda: "cuda")
    monkeypatch.setattr(machine, "device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    cluster = machines_like_this("test", nodes=2, per_node=4)
    assert cluster.device == PRESETS["a100-dgx"].device.device()
    assert cluster.level("node").bytes_per_s > 1e9


def test_an_unknown_accelerator_has_its_own_memory_and_guessed_rates(monkeypatch):
    monkeypatch.setattr(machine, "device_type", lambda: "cuda")
    monkeypatch.setattr(machine, "device_name", lambda device: "Accelerator 9000")
    monkeypatch.setattr(machine, "memory_bytes_per_rank", lambda device, ranks: 123)
    cluster = machines_like_this("test", nodes=1, per_node=2)
    assert (cluster.device.name, cluster.device.memory_bytes) == ("Accelerator 9000", 123)


def test_a_file_is_loaded(tmp_path: Path, monkeypatch):
    cluster = cluster_from("v100-dgx1:2")
    save_cluster(cluster, tmp_path / "mine.toml")
    assert cluster_from(str(tmp_path / "mine.toml")) == cluster
    monkeypatch.chdir(tmp_path)
    assert cluster_from("mine.toml") == cluster


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a100", "no cluster preset 'a100'. Did you mean 'a100-dgx'"),
        ("", "no cluster preset ''"),
        ("nowhere.toml", "no cluster file nowhere.toml"),
        ("some/where", "no cluster file some/where"),
        ("a100-dgx:0", "'0' in the cluster 'a100-dgx:0'"),
        ("a100-dgx:", "'' in the cluster 'a100-dgx:'"),
        ("a100-dgx:two", "'two' in the cluster"),
        ("0x4", "'0' in the cluster '0x4'"),
    ],
)
def test_what_means_no_cluster_is_explained(text, message):
    with pytest.raises(ClusterError, match=message):
        cluster_from(text)
