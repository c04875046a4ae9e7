"""One call of an ATen op, as the rules see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from syncline.graph.notation import Shape
from syncline.graph.opgraph import Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """An op's name, its arguments by name, and the shapes of its outputs."""

    name: str
    overload: str
    arguments: Mapping[str, Any]
    """Tensors as `Tensor`, lists of tensors as tuples, omitted optional tensors as None."""
    optional: frozenset[str]
    """The arguments that are tensors or None."""
    outputs: tuple[Shape, ...]

    @property
    def inputs(self) -> tuple[Shape | None, ...]:
        """The shape of each tensor argument, lists laid out flat; None for those left out."""
        shapes: list[Shape | None] = []
        for name, value in self.arguments.items():
            if isinstance(value, Tensor):
                shapes.append(value.shape)
            elif isinstance(value, tuple) and any(isinstance(item, Tensor) for item in value):
                shapes += [item.shape if isinstance(item, Tensor) else None for item in value]
            elif value is None and name in self.optional:
                shapes.append(None)
        return tuple(shapes)

    def shape(self, name: str = "self") -> Shape:
        """The shape of a tensor argument."""
        return self.arguments[name].shape

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """The shapes of a list of tensors."""
        return tuple(tensor.shape for tensor in self.arguments[name])

    def dim(self, rank: int, name: str = "dim") -> int:
        """A dim argument, counted from the front."""
        value = self.arguments[name]
        return value % rank if rank else 0

    def dims(self, rank: int, name: str = "dim") -> tuple[int, ...]:
        """A dims argument, counted from the front; all dims when it is None or empty."""
        value = self.arguments.get(name)
        if value is None or value == () or rank == 0:
            return tuple(range(rank))
        return tuple(one % rank for one in (value if isinstance(value, tuple) else (value,)))


def dim_names(rank: int, prefix: str = "d") -> list[str]:
    """d0 d1 ..., one name for each dim of a tensor."""
    return [f"{prefix}{index}" for index in range(rank)]
