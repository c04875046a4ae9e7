from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.cluster.mesh import Mesh, prime_factors
from syncline.cluster.topology import Cluster, Device, Level
from syncline.errors import ClusterError

DEVICE = Device(flops_per_s=1e12, memory_bytes=1 << 30, memory_bytes_per_s=1e11)


def mesh_of(*sizes: int) -> Mesh:
    levels = tuple(
        Level(name=name, size=size, bytes_per_s=1e9, latency_s=1e-6)
        for name, size in zip(("node", "network", "region"), sizes, strict=False)
    )
    return Mesh.of(Cluster(name="test", device=DEVICE, levels=levels))


meshes = st.lists(st.integers(1, 12), max_size=3).map(lambda sizes: mesh_of(*sizes))


@given(st.integers(1, 10_000))
def test_prime_factors_multiply_to_the_number(number):
    factors = prime_factors(number)
    assert math.prod(factors) == number
    assert all(prime_factors(factor) == (factor,) for factor in factors)
    assert list(factors) == sorted(factors)


def test_axes_are_the_prime_factors_of_the_levels():
    mesh = mesh_of(8, 6)
    assert mesh.names == ("network.1", "network.0", "node.2", "node.1", "node.0")
    assert mesh.shape == (3, 2, 2, 2, 2)
    assert [axis.level for axis in mesh.axes] == [1, 1, 0, 0, 0]


def test_levels_of_one_have_no_axis():
    mesh = mesh_of(1, 3)
    assert mesh.names == ("network.0",)
    assert mesh.spans(mesh.names) == (1, 3)


def test_a_single_device_has_a_mesh_without_axes():
    mesh = mesh_of()
    assert (mesh.world_size, mesh.coordinates(0), mesh.rank_at(()), mesh.spans(())) == (1, (), 0, ())
    assert mesh.groups(()).tolist() == [[0]]


def test_neighbours_are_on_the_innermost_axis():
    mesh = mesh_of(4, 2)
    assert mesh.coordinates(0) == (0, 0, 0)
    assert mesh.coordinates(1) == (0, 0, 1)
    assert mesh.coordinates(4) == (1, 0, 0)
    assert mesh.group_of(5, ["node.1", "node.0"]) == (4, 5, 6, 7)
    assert mesh.group_of(5, ["network.0"]) == (1, 5)


def test_members_follow_the_order_of_the_names():
    mesh = mesh_of(4)
    assert mesh.group_of(0, ["node.1", "node.0"]) == (0, 1, 2, 3)
    assert mesh.group_of(0, ["node.0", "node.1"]) == (0, 2, 1, 3)


@given(meshes)
def test_coordinates_and_ranks_are_inverse(mesh):
    for rank in range(mesh.world_size):
        assert mesh.rank_at(mesh.coordinates(rank)) == rank


@given(meshes, st.data())
def test_groups_partition_the_ranks_and_agree_with_coordinates(mesh, data):
    names = data.draw(st.lists(st.sampled_from(mesh.names), unique=True)) if mesh.names else []
    groups = mesh.groups(names)
    assert sorted(groups.ravel().tolist()) == list(range(mesh.world_size))
    assert groups.shape[1] == math.prod(mesh.spans(names))
    fixed = [position for position, name in enumerate(mesh.names) if name not in names]
    for group in groups:
        places = np.array([mesh.coordinates(int(rank)) for rank in group]).reshape(len(group), -1)
        assert all(len(set(places[:, position].tolist())) == 1 for position in fixed)
        assert all(mesh.group_of(int(rank), names) == tuple(group.tolist()) for rank in group)


def test_mistakes_are_explained():
    mesh = mesh_of(4, 2)
    with pytest.raises(ClusterError, match=r"no mesh axis 'node.7'"):
        mesh.axis("node.7")
    with pytest.raises(ClusterError, match="named twice"):
        mesh.groups(["node.0", "node.0"])
    with pytest.raises(ClusterError, match="no rank 8"):
        mesh.coordinates(8)
    with pytest.raises(ClusterError, match="no rank -1"):
        mesh.group_of(-1, ["node.0"])
    with pytest.raises(ClusterError, match="no place on a mesh"):
        mesh.rank_at((0, 2, 0))
    with pytest.raises(ClusterError, match="no place on a mesh"):
        mesh.rank_at((0, 1))
