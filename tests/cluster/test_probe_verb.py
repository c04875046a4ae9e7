from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from syncline.cli.app import run
from syncline.cluster.cluster_file import load_cluster
from syncline.cluster.collectives import collective_s
from syncline.errors import ClusterError
from syncline.launch.namespaces import check_emulation_possible


def syncline(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "syncline", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, check=False)


def can_emulate() -> bool:
    try:
        check_emulation_possible()
    except ClusterError:
        return False
    return True


def test_probe_writes_a_cluster_and_prints_one_document(tmp_path):
    done = syncline("probe", "--quick", "--json", "-o", "mine.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    cluster = load_cluster(tmp_path / "mine.toml")
    assert document["output"] == "mine.toml"
    assert document["cluster"]["device"]["flops_per_s"] == cluster.device.flops_per_s
    assert (cluster.name, cluster.world_size, cluster.measured) == ("mine", 2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_probe_joins_the_ranks_of_torchrun(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "syncline", "probe", "--quick", "-o", "mine.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["mine.toml"]
    assert "float32 products" in done.stderr
    assert load_cluster(tmp_path / "mine.toml").world_size == 2


@pytest.mark.emulated
@pytest.mark.skipif(not can_emulate(), reason="needs root and iproute2")
def test_probe_finds_the_slow_links_of_emulated_nodes(tmp_path):
    done = syncline("probe", "--quick", "--emulate", "2x1@100mbit", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    cluster = load_cluster(tmp_path / "cluster.toml")
    [network] = cluster.levels
    assert (network.name, network.size) == ("network", 2)
    # 12.5 MB/s, give or take bursts that the limiter lets through and a busy machine; without a limit it
    # would be a gigabyte and a millisecond.
    assert 1e6 < network.bytes_per_s < 80e6
    assert float(collective_s(cluster, "all_reduce", (2,), 1 << 20)) > 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "missing/cluster.toml"], "There is no folder missing"),
        (["-o", "."], "is a folder"),
        (["--ranks", "0"], "0 ranks cannot be measured"),
        (["--emulate", "many"], "many"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
