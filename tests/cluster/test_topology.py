from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.cluster.cluster_file import format_cluster, load_cluster, save_cluster
from syncline.cluster.topology import Cluster, Device, Level, Slowdown
from syncline.errors import ClusterError

DEVICE = Device(name="small", flops_per_s=1e12, memory_bytes=8 << 30, memory_bytes_per_s=1e11)
NODE = Level(name="node", size=4, bytes_per_s=1e10, latency_s=1e-6)
NETWORK = Level(name="network", size=2, bytes_per_s=1e9, latency_s=1e-5)
CLUSTER = Cluster(name="two", device=DEVICE, levels=(NODE, NETWORK), source="made up")

positive = st.floats(min_value=1e-12, max_value=1e18)


@st.composite
def clusters(draw):
    device = Device(
        name=draw(st.text()),
        flops_per_s=draw(positive),
        memory_bytes=draw(st.integers(1, 2**62)),
        memory_bytes_per_s=draw(positive),
        flops_per_s_bf16=draw(st.none() | positive),
    )
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), max_size=4, unique=True))
    levels = tuple(
        Level(
            name=name,
            size=draw(st.integers(1, 9)),
            bytes_per_s=draw(positive),
            latency_s=draw(st.floats(0, 10)),
            slowdown=Slowdown(reduce_scatter=draw(st.floats(0.5, 4)), send=draw(st.sampled_from([1.0, 2.0]))),
        )
        for name in names
    )
    return Cluster(
        name=draw(st.text()),
        device=device,
        levels=levels,
        measured=draw(st.booleans()),
        source=draw(st.text()),
    )


def test_world_size_is_the_product_of_the_levels():
    assert CLUSTER.world_size == 8
    assert [CLUSTER.unit_size(index) for index in range(3)] == [1, 4, 8]
    assert Cluster(name="one", device=DEVICE).world_size == 1


def test_levels_are_found_by_name():
    assert CLUSTER.level("network") is NETWORK
    with pytest.raises(ClusterError, match=r"no level 'rack'.*node, network"):
        CLUSTER.level("rack")


def test_bfloat16_has_its_own_rate_where_it_is_known():
    assert DEVICE.matmul_flops_per_s(2) == 1e12
    faster = dataclasses.replace(DEVICE, flops_per_s_bf16=8e12)
    assert faster.matmul_flops_per_s(2) == 8e12
    assert faster.matmul_flops_per_s(4) == 1e12


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (DEVICE, {"flops_per_s": 0.0}, "flops_per_s of the device is 0.0"),
        (DEVICE, {"memory_bytes": -1}, "memory_bytes of the device is -1"),
        (DEVICE, {"memory_bytes_per_s": math.nan}, "memory_bytes_per_s of the device is nan"),
        (DEVICE, {"flops_per_s_bf16": math.inf}, "flops_per_s_bf16 of the device is inf"),
        (NODE, {"size": 0}, "size of level 'node' is 0"),
        (NODE, {"bytes_per_s": 0.0}, "bytes_per_s of level 'node' is 0.0"),
        (NODE, {"latency_s": -1.0}, "latency_s of level 'node' is -1.0"),
        (NODE, {"name": "My node"}, "cannot be called 'My node'"),
        (Slowdown(), {"send": 0.0}, "slowdown of send is 0.0"),
        (CLUSTER, {"schema": 2}, "schema of cluster 'two' is 2"),
        (CLUSTER, {"levels": (NODE, NODE)}, "several levels called 'node'"),
    ],
)
def test_impossible_figures_are_refused(part, change, message):
    with pytest.raises(ClusterError, match=re.escape(message)):
        dataclasses.replace(part, **change)


@given(clusters())
def test_a_saved_cluster_reads_back_equal(tmp_path_factory, cluster):
    path = tmp_path_factory.mktemp("clusters") / "cluster.toml"
    save_cluster(cluster, path)
    assert load_cluster(path) == cluster


def test_saving_leaves_nothing_but_the_file(tmp_path):
    save_cluster(CLUSTER, tmp_path / "cluster.toml")
    save_cluster(dataclasses.replace(CLUSTER, name="other"), tmp_path / "cluster.toml")
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]
    assert load_cluster(tmp_path / "cluster.toml").name == "other"


def test_saving_into_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ClusterError, match="Cannot write the cluster file"):
        save_cluster(CLUSTER, tmp_path / "missing" / "cluster.toml")


def test_the_smallest_file_takes_its_name_from_the_path(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(
        "schema = 1\n[device]\nflops_per_s = 1e12\nmemory_bytes = 8e9\nmemory_bytes_per_s = 1e11\n"
    )
    cluster = load_cluster(path)
    assert (cluster.name, cluster.world_size, cluster.device.memory_bytes) == ("lab", 1, 8_000_000_000)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "", "Add the line: schema = 1"),
        ("schema = 1", "schema = 7", "schema of cluster 'two' is 7; this version of Syncline reads 1"),
        (
            "size = 4",
            "size = 4\ncolour = 1",
            "level[0]: unknown key 'colour'; allowed: name, size, bytes_per_s",
        ),
        ("[device]", "[machine]", "unknown key 'machine'; allowed: name, device, level"),
        ("[device]", "[[device]]", "device: has the wrong shape (must be a [device] table)"),
        ("size = 4", "size = 4.5", "level[0].size: is 4.5, but must be a whole number"),
        ("size = 4", "size = true", "level[0].size: is True, but must be a whole number"),
        ("size = 2", "size = 0", "level[1]: size of level 'network' is 0; it must be at least 1"),
        ("measured = false", "measured = 0", "measured: is 0, but must be true or false"),
        ('name = "two"', "name = 2", "name: is 2, but must be a text in quotes"),
        (
            "flops_per_s = 1000000000000.0",
            'flops_per_s = "fast"',
            "device.flops_per_s: is 'fast', but must be",
        ),
        ("flops_per_s = 1000000000000.0\n", "", "device.flops_per_s: is missing"),
        (
            "size = 4",
            "size = 4\nslowdown = {sned = 2}",
            "level[0].slowdown: unknown key 'sned'; allowed: all_red",
        ),
        (
            "size = 4",
            "size = 4\nslowdown = 2",
            "level[0].slowdown: has the wrong shape (must be a [level.slow",
        ),
        ("schema = 1", "schema = ", "is not TOML"),
    ],
)
def test_a_wrong_file_names_the_key_and_what_is_allowed(tmp_path, old, new, message):
    path = tmp_path / "cluster.toml"
    text = format_cluster(CLUSTER)
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ClusterError, match=re.escape(message)) as caught:
        load_cluster(path)
    assert str(path) in str(caught.value)


def test_one_level_table_is_pointed_out(tmp_path):
    path = tmp_path / "cluster.toml"
    one_level = dataclasses.replace(CLUSTER, levels=(NODE,))
    path.write_text(format_cluster(one_level).replace("[[level]]", "[level]"))
    with pytest.raises(ClusterError, match=re.escape("write each level as a [[level]] table")):
        load_cluster(path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ClusterError, match="Cannot read the cluster file"):
        load_cluster(tmp_path / "none.toml")
