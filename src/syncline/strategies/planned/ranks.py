"""The live ranks as a plan's mesh: where this rank is, and the groups that it talks to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from syncline.cluster.mesh import Mesh, MeshAxis
from syncline.planning.plan import Axis

ACTIVATIONS = "activations"

_Key = tuple[str, tuple[tuple[int, ...], ...]]
_OPEN: WeakKeyDictionary[dist.ProcessGroup, dict[_Key, dist.ProcessGroup]] = WeakKeyDictionary()
"""The groups made inside each group of all ranks: every plan of a process shares them, for each one costs
connections and threads."""


class LiveMesh:
    """A plan's axes laid over the ranks, in rank order, the last axis fastest."""

    def __init__(self, axes: Sequence[Axis], rank: int, device: torch.device) -> None:
        """Every rank must make this at the same time: it opens process groups."""
        levels = list(dict.fromkeys(axis.level for axis in reversed(axes)))
        self._mesh = Mesh(
            tuple(MeshAxis(name=one.name, level=levels.index(one.level), size=one.size) for one in axes),
            num_levels=len(levels),
        )
        self.sizes = self._mesh.shape
        self.rank = rank
        self.coordinates = self._mesh.coordinates(rank)
        self.device = device
        self._devices: DeviceMesh | None = None

    @property
    def device_mesh(self) -> DeviceMesh:
        """The same mesh for DTensors."""
        if self._devices is None:
            self._devices = self._make_device_mesh()
        return self._devices

    def members(self, axes: Sequence[int]) -> int:
        """How many ranks a group over these axes has."""
        return math.prod(self.sizes[axis] for axis in axes)

    def place(self, axes: Sequence[int]) -> int:
        """This rank's place in its group over these axes, the first axis slowest."""
        place = 0
        for axis in axes:
            place = place * self.sizes[axis] + self.coordinates[axis]
        return place

    def group(self, axes: Sequence[int], purpose: str = ACTIVATIONS) -> dist.ProcessGroup:
        """This rank's group over these axes; members are in the order of `place`.

        Every rank must ask for the same groups in the same order: the first to ask opens the group. What is
        sent for another purpose goes through another group, so that neither waits for the other.
        """
        everyone = _process_group(dist.group.WORLD)
        groups = self._mesh.groups([self._mesh.names[axis] for axis in axes]).tolist()
        if groups == [list(range(dist.get_world_size()))] and purpose == ACTIVATIONS:
            return everyone
        for gone in [one for one in _OPEN if one is not everyone]:
            del _OPEN[gone]
        opened = _OPEN.setdefault(everyone, {})
        key = (purpose, tuple(map(tuple, groups)))
        if key not in opened:
            opened[key] = _process_group(dist.new_subgroups_by_enumeration(groups)[0])
        return opened[key]

    def _make_device_mesh(self) -> DeviceMesh:
        names = tuple(name.replace(".", "_") for name in self._mesh.names)
        if len(self.sizes) < 2:
            return init_device_mesh(self.device.type, self.sizes or (1,), mesh_dim_names=names or ("alone",))
        groups = [self.group((axis,)) for axis in range(len(self.sizes))]
        ranks = torch.arange(dist.get_world_size(), dtype=torch.int).reshape(self.sizes)
        return DeviceMesh.from_group(groups, self.device.type, mesh=ranks, mesh_dim_names=names)


def _process_group(found: object) -> dist.ProcessGroup:
    if not isinstance(found, dist.ProcessGroup):
        raise RuntimeError(f"this rank is in no such group, but in {found!r}")
    return found
