"""The state of a planned training under the flat names that all strategies share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.ranks import LiveMesh
from syncline.strategies.planned.storage import Placing
from syncline.strategies.state import (
    GROUPS_KEY,
    apply_settings,
    collect_settings,
    materialise,
    model_tensors,
)


class PlannedState:
    """Reads and writes weights, buffers and optimizer state."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        placed: Mapping[str, PlacedParameter],
        mesh: LiveMesh,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._placed = placed
        self._mesh = mesh
        present = dict(model.named_parameters())
        self._names = {id(parameter): name for name, parameter in present.items()}
        self._names |= {id(one.stored): name for name, one in placed.items()}

    def collect(self) -> dict[str, Any]:
        """All state; tensors that are cut are DTensors of the live ones, strided ones are put together."""
        materialise(self._optimizer)
        state: dict[str, Any] = {}
        for name, tensor in model_tensors(self._model).items():
            one = self._placed.get(name)
            state[f"model.{name}"] = tensor if one is None else self._whole(one.placing, one.stored.detach())
        for parameter, entries in self._optimizer.state.items():
            name = self._names[id(parameter)]
            for key, value in entries.items():
                if value is not None:
                    state[f"optimizer.{name}.{key}"] = self._entry(name, value)
        state[GROUPS_KEY] = json.dumps(collect_settings(self._optimizer))
        return state

    def apply(self, state: Mapping[str, Any]) -> None:
        """Take over a state, perhaps from another strategy."""
        materialise(self._optimizer)
        with torch.no_grad():
            for name, tensor in model_tensors(self._model).items():
                one = self._placed.get(name)
                loaded = state[f"model.{name}"]
                if one is None:
                    tensor.copy_(loaded)
                else:
                    self._take(one.placing, one.stored.detach(), loaded)
            for parameter, entries in self._optimizer.state.items():
                name = self._names[id(parameter)]
                for key, value in entries.items():
                    if value is not None:
                        self._load_entry(name, entries, key, state[f"optimizer.{name}.{key}"])
        apply_settings(self._optimizer, json.loads(state[GROUPS_KEY]))

    def _entry(self, name: str, value: Any) -> Any:
        one = self._placed.get(name)
        if one is None or not isinstance(value, Tensor) or isinstance(value, DTensor):
            return value
        return self._whole(one.placing, value) if value.shape == one.stored.shape and value.ndim else value

    def _load_entry(self, name: str, entries: dict[str, Any], key: str, loaded: Any) -> None:
        one, value = self._placed.get(name), entries[key]
        if not isinstance(value, Tensor):
            entries[key] = loaded
        elif one is None or isinstance(value, DTensor) or value.shape != one.stored.shape or not value.ndim:
            value.copy_(loaded)
        else:
            self._take(one.placing, value, loaded)

    def _whole(self, placing: Placing, stored: Tensor) -> Tensor:
        return self._joined(placing, stored) if placing.is_strided else placing.as_dtensor(stored, self._mesh)

    def _joined(self, placing: Placing, stored: Tensor) -> Tensor:
        """The whole of a strided tensor: every rank adds its part."""
        whole = stored.new_zeros(placing.shape)
        placing.cut_into(whole, stored, self._mesh)
        axes = placing.cut_by
        if axes:
            dist.all_reduce(whole, group=self._mesh.group(axes))
        return whole

    def _take(self, placing: Placing, stored: Tensor, loaded: Tensor) -> None:
        if isinstance(loaded, DTensor):
            same = loaded.device_mesh == self._mesh.device_mesh and list(loaded.placements) == list(
                placing.placements()
            )
            if not placing.is_strided and same:
                stored.copy_(loaded.to_local())
                return
            loaded = loaded.full_tensor()
        stored.copy_(placing.cut_share(placing.cut_leaf(loaded, self._mesh), self._mesh))
