"""The parameters of a model under a plan, as one rank has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from syncline._torch_compat import preserved_version
from syncline.planning.parameter_costs import Keeping
from syncline.strategies.planned.ranks import LiveMesh
from syncline.strategies.planned.storage import Placing
from syncline.strategies.under_way import unrecorded, wait_for
from syncline.workloads.deferred.weights import DeferredWeight


class PlacedParameter:
    """One trained parameter on this rank."""

    def __init__(
        self, placing: Placing, whole: Tensor, mesh: LiveMesh, deferred: DeferredWeight | None = None
    ) -> None:
        """Takes this rank's part of the whole tensor, or makes it where that is deferred.

        The whole is not kept; on the meta device it tells the shape alone.
        """
        self.placing = placing
        self._mesh = mesh
        part = placing.cut_leaf(whole.detach(), mesh)
        share = placing.cut_share(part, mesh)
        if deferred is None:
            self.stored = share.clone(memory_format=torch.contiguous_format)
        else:
            self.stored = deferred.make(placing.stored_box(mesh), mesh.device).view(share.shape)
        self.leaf = self.stored if placing.share is None else self.stored.new_empty(part.shape)
        self.leaf.requires_grad_(whole.requires_grad)
        self.stored.requires_grad_(whole.requires_grad)
        self._bytes = self.leaf.untyped_storage().nbytes()
        self._pending: dist.Work | None = None
        self._gathered: Tensor | None = None
        self.is_gathered = placing.share is None
        if self.is_temporary:
            self.leaf.untyped_storage().resize_(0)

    @property
    def is_temporary(self) -> bool:
        """Whether the leaf has memory only while it is used."""
        return self.placing.share is not None and self.placing.keep is not Keeping.STATE_SHARDED

    def start_gather(self) -> None:
        """Begin to fetch the leaf from all ranks that have a share of it."""
        share = self.placing.share
        if share is None or self.is_gathered or self._gathered is not None:
            return
        parts, group = self._mesh.members(share.axes), self._mesh.group(share.axes, "weights")
        own = self.stored.detach()
        self._gathered = own.new_empty((parts, *own.shape))
        self._pending = dist.all_gather_single(self._gathered.flatten(0, 1), own, group=group, async_op=True)

    def gather(self) -> Tensor:
        """The leaf, whole; waits for it."""
        if self.is_gathered:
            return self.leaf
        self.start_gather()
        pending, gathered, share = self._pending, self._gathered, self.placing.share
        if pending is None or gathered is None or share is None:
            raise RuntimeError(f"{self.placing.name} was not being gathered")
        wait_for(pending)
        self._pending = self._gathered = None
        if self.is_temporary:
            self.leaf.untyped_storage().resize_(self._bytes)
        with torch.no_grad(), preserved_version(self.leaf):
            seen = self.leaf.unflatten(share.dim, (len(gathered), -1))
            seen.copy_(gathered.movedim(0, share.dim))
        self.is_gathered = True
        return self.leaf

    def free(self) -> None:
        """Give the memory of a temporary leaf back."""
        if self.is_temporary and self.is_gathered:
            self.leaf.untyped_storage().resize_(0)
            self.is_gathered = False

    def refresh(self) -> None:
        """Bring a lasting leaf up to date after its shares have changed, and drop what was fetched before."""
        if self._pending is not None:
            wait_for(self._pending)
            self._pending = self._gathered = None
        if self.placing.share is not None and not self.is_temporary:
            self.is_gathered = False
            # It may be under way until the next step.
            with unrecorded():
                self.start_gather()
        else:
            self.free()


def place_parameters(
    model: nn.Module,
    placings: Mapping[str, Placing],
    mesh: LiveMesh,
    deferred: Mapping[str, DeferredWeight],
) -> dict[str, PlacedParameter]:
    """Cuts the model's parameters and puts DTensors of the parts in their place.

    Those that the plan says nothing of stay whole, and are made if they are deferred.
    """
    placed: dict[str, PlacedParameter] = {}
    owners = _owners(model)
    for name, whole in list(model.named_parameters()):
        if name in placings:
            one = placed[name] = PlacedParameter(placings[name], whole, mesh, deferred.get(name))
            stands = placings[name].as_dtensor(one.stored.detach(), mesh)
        elif name in deferred:
            stands = deferred[name].make(device=mesh.device)
        else:
            continue
        stands = nn.Parameter(stands, requires_grad=whole.requires_grad)
        for owner, attribute in owners[id(whole)]:
            owner.register_parameter(attribute, stands)
        del whole
    return placed


def place_buffers(model: nn.Module, placings: Mapping[str, Placing], mesh: LiveMesh) -> dict[str, Tensor]:
    """This rank's part of each buffer; those that are cut are DTensors in the model."""
    found: dict[str, Tensor] = {}
    for name, buffer in list(model.named_buffers()):
        placing = placings.get(name)
        if placing is None:
            continue
        if not placing.cut_by:
            found[name] = buffer
            continue
        local = placing.cut_leaf(buffer, mesh).clone()
        found[name] = local
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], placing.as_dtensor(local, mesh))
    return found


def _owners(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Which modules have each parameter, and under what name: several for tied ones."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), []).append((module, name))
    return found


def trained(placed: Mapping[str, PlacedParameter]) -> Iterator[PlacedParameter]:
    """Those that get gradients."""
    return (one for one in placed.values() if one.leaf.requires_grad)
