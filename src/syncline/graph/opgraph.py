"""The captured computation graph as data: tensors, ops, and who makes and uses what.

It holds facts only. How ops are split is the planner's business, and running them the executor's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram

from syncline._torch_compat import OpOverload
from syncline.graph import composites as composites  # `resolve` finds them among torch's ops.
from syncline.graph.space import IterationSpace


class TensorKind(StrEnum):
    """Where a tensor comes from."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the graph, at its full size."""

    id: int
    name: str
    """Parameters, buffers and constants: the qualified name in the model. Others: unique in the graph."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: TensorKind
    requires_grad: bool = False

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How large it is."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands for a tensor among the arguments of an op."""

    id: int

    def __repr__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. It is pure, but for the buffers that it updates in place."""

    id: int
    """Its place in the graph; every op comes after those that it depends on."""
    name: str
    """The module's path and the op's name, unique in the graph: `blocks.0.attention.query/linear`."""
    target: str
    """The ATen overload, for example `aten.linear.default`; `resolve` gives the function."""
    arguments: Mapping[str, Any]
    """All arguments by name, tensors as `TensorRef`; devices are left out."""
    inputs: tuple[int, ...]
    """The tensors that it takes, in the order of the arguments, and of `space.inputs`."""
    outputs: tuple[int, ...]
    """The tensors that it gives, in the order of `space.outputs`."""
    space: IterationSpace
    module: str
    """Path of the module that was called; empty at the top."""
    source: Source | None
    forward_flops: int
    backward_flops: int
    bytes_read: int
    """Of the forward pass; nothing for a view."""
    bytes_written: int
    is_view: bool = False
    """Its outputs are the memory of its first input."""
    saved: tuple[int, ...] = ()
    """The inputs and outputs that backward needs."""
    saved_extra_bytes: int = 0
    """What else the op keeps for backward: masks, statistics, log-probabilities."""
    updates: tuple[int, ...] = ()
    """The buffers among its inputs that the op itself updates in place: running statistics."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments that are not tensors."""
        return {name: value for name, value in self.arguments.items() if not _refers(value)}

    @property
    def flops(self) -> int:
        """FLOPs of forward and backward."""
        return self.forward_flops + self.backward_flops


def resolve(target: str) -> OpOverload:
    """The function that an op's target names."""
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


@dataclass(frozen=True)
class OpGraph:
    """A model's computation, from inputs to outputs, as ops in an order in which they can run."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    """The user's input tensors, in the order in which the example's flattened."""
    outputs: tuple[int, ...]
    """Of a training graph, the loss alone."""
    buffer_updates: Mapping[int, int] = field(default_factory=dict)
    """Buffers that forward assigns to, and the tensors that hold their new values."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Other names of tied parameters and buffers, and the names that the graph uses for them."""
    constants: Mapping[int, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)
    """The values of the constant tensors, where the model has them: not if it is on the meta device."""
    exported: ExportedProgram | None = field(default=None, repr=False, compare=False)
    """What it was made from."""

    @cached_property
    def producers(self) -> tuple[int | None, ...]:
        """For each tensor, the op that makes it; None for parameters, buffers, inputs and constants."""
        made: list[int | None] = [None] * len(self.tensors)
        for op in self.ops:
            for tensor in op.outputs:
                made[tensor] = op.id
        return tuple(made)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor, the ops that take it."""
        users: list[list[int]] = [[] for _ in self.tensors]
        for op in self.ops:
            for tensor in dict.fromkeys(op.inputs):
                users[tensor].append(op.id)
        return tuple(map(tuple, users))

    def of_kind(self, kind: TensorKind) -> Iterator[Tensor]:
        """The tensors of one kind."""
        return (tensor for tensor in self.tensors if tensor.kind is kind)

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name; tied ones once."""
        return {tensor.name: tensor for tensor in self.of_kind(TensorKind.PARAMETER)}

    @property
    def parameter_count(self) -> int:
        """How many weights the model has."""
        return sum(tensor.elements for tensor in self.parameters.values())

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass."""
        return sum(op.forward_flops for op in self.ops)

    @property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass."""
        return sum(op.backward_flops for op in self.ops)

    @cached_property
    def unruled(self) -> tuple[Op, ...]:
        """The ops that the table has no rule for: they run whole on every device."""
        return tuple(op for op in self.ops if not op.space.ruled)

    def op(self, name: str) -> Op:
        """The op of this name."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Op]:
        return {op.name: op for op in self.ops}

    def summary(self) -> dict[str, Any]:
        """What the graph amounts to, for JSON."""
        unruled = [
            {"op": op.name, "target": op.target, "flops": op.flops, "bytes": op.bytes_read + op.bytes_written}
            for op in self.unruled
        ]
        return {
            "ops": len(self.ops),
            "targets": dict(Counter(op.target for op in self.ops).most_common()),
            "parameters": self.parameter_count,
            "parameter_bytes": sum(tensor.bytes for tensor in self.parameters.values()),
            "buffers": sum(tensor.elements for tensor in self.of_kind(TensorKind.BUFFER)),
            "forward_flops": self.forward_flops,
            "backward_flops": self.backward_flops,
            "activation_bytes": sum(tensor.bytes for tensor in self.of_kind(TensorKind.ACTIVATION)),
            "inputs": {self.tensors[i].name: list(self.tensors[i].shape) for i in self.inputs},
            "outputs": {self.tensors[i].name: list(self.tensors[i].shape) for i in self.outputs},
            "tied": dict(self.tied),
            "unruled": unruled,
        }


def _refers(value: Any) -> bool:
    if isinstance(value, TensorRef):
        return True
    return isinstance(value, (tuple, list)) and any(_refers(item) for item in value)
