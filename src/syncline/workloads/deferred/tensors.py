"""Tensors that stand for large ones while a model is built: views of a memory that holds a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from syncline._torch_compat import StandIn
from syncline.workloads.deferred.values import Patched, Reading, Recipe, Sliced, chunks


class Memory:
    """What a tensor and its views have in common: a recipe, or in the end real memory."""

    def __init__(self, numel: int, dtype: torch.dtype, recipe: Recipe) -> None:
        self.numel = numel
        self.dtype = dtype
        self.recipe = recipe
        self.real: Tensor | None = None

    def realise(self) -> Tensor:
        """All elements, flat; from now on they are what counts, and the recipe is out of date."""
        if self.real is None:
            real, reading = torch.empty(self.numel, dtype=self.dtype), Reading()
            for start, stop in chunks(self.numel):
                real[start:stop] = reading.read(self.recipe, start, stop)
            self.real = real
        return self.real


class DeferredTensor(StandIn):
    """A contiguous range of a memory, in some shape."""

    memory: Memory
    offset: int

    @staticmethod
    def of(memory: Memory, shape: Sequence[int], offset: int = 0) -> DeferredTensor:
        """A view of a memory."""
        made = StandIn.shaped(DeferredTensor, shape, memory.dtype)
        made.memory, made.offset = memory, offset
        return made

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its memory."""
        return self.numel() == self.memory.numel

    @property
    def recipe(self) -> Recipe:
        """Of its own elements."""
        return self.memory.recipe if self.is_whole else Sliced(self.memory.recipe, self.offset)

    def write(self, recipe: Recipe) -> DeferredTensor:
        """Let the recipe be that of its elements from now on."""
        memory, stop = self.memory, self.offset + self.numel()
        memory.recipe = recipe if self.is_whole else Patched(memory.recipe, recipe, self.offset, stop)
        return self

    def twin(self) -> Tensor:
        """The same view of memory on the meta device, to learn what ops make of it."""
        whole = torch.empty(self.memory.numel, dtype=self.dtype, device="meta")
        return whole[self.offset : self.offset + self.numel()].view(self.shape)

    def realised(self) -> Tensor:
        """The same view of real memory."""
        real = self.memory.realise()
        return real[self.offset : self.offset + self.numel()].view(self.shape)

    @property
    def data(self) -> Tensor:
        """The same without a history."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        # The setter of the base class would leave the recipe behind.
        if not isinstance(value, DeferredTensor) or (value.shape, value.dtype) != (self.shape, self.dtype):
            raise TypeError(f"the memory of a deferred tensor of shape {tuple(self.shape)} is replaced")
        self.memory, self.offset = value.memory, value.offset

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made: Tensor = self.detach().clone()
        if isinstance(made, DeferredTensor):
            vars(made).update(self.marks())
            made.requires_grad_(self.requires_grad)
        elif isinstance(self, nn.Parameter):
            made = nn.Parameter(made, requires_grad=self.requires_grad)
        memo[id(self)] = made
        return made

    def marks(self) -> dict[str, Any]:
        """What others have set on this tensor, such as that it is a parameter."""
        return {key: value for key, value in vars(self).items() if key not in ("memory", "offset")}

    @classmethod
    def run(cls, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """When nothing records, ops make it real."""
        return run_for_real(op, args, kwargs)


def run_for_real(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run an op on real memory, of which deferred tensors are views from now on."""
    stands_for: dict[int, DeferredTensor] = {}

    def real(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)([real(one) for one in value])
        if not isinstance(value, DeferredTensor):
            return value
        found = value.realised()
        stands_for[id(found)] = value
        return found

    operands, keywords = real(args), {key: real(value) for key, value in kwargs.items()}
    result = op(*operands, **keywords)
    return stands_for.get(id(result), result)
