"""One op at its local shapes as data: what is timed on a machine, and what a timing is looked up by."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from syncline.graph.local import LocalOp, localise
from syncline.graph.opgraph import Op, OpGraph
from syncline.graph.shards import Part
from syncline.graph.space import DimKind

_INDEXED = {"embedding": "v", "cross_entropy_loss": "c", "nll_loss_nd": "c"}
"""Ops that look something up, and the iteration dim that their indices are in."""


@dataclass(frozen=True, slots=True)
class CallInput:
    """One tensor that an op is called with."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool
    upper: int = 1
    """Whole numbers are below it, so that they are legal indices."""

    @property
    def bytes(self) -> int:
        """How large it is."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class OpCall:
    """An op as one device calls it; equal to others by what it computes, at what shapes."""

    local: LocalOp = field(compare=False)
    inputs: tuple[CallInput, ...] = field(compare=False)
    key: str
    """Equal for equal calls in all processes: the op's name, and a digest of everything else."""

    @property
    def name(self) -> str:
        """The op for people: `linear`."""
        return self.local.target.split(".")[1]

    @property
    def has_backward(self) -> bool:
        """Whether anything that it takes needs a gradient."""
        return any(one.needs_gradient for one in self.inputs)


def op_call(graph: OpGraph, op: Op, sizes: Sequence[int]) -> OpCall:
    """The call of an op whose iteration dims have these local sizes.

    A split `collective` dim is called at its local size without the exchange, which is priced by itself.
    """
    parts = {
        index: Part(0, size)
        for index, (dim, size) in enumerate(zip(op.space.dims, sizes, strict=True))
        if size != dim.size and dim.kind in (DimKind.FREE, DimKind.SUM)
    }
    upper = _upper(op, sizes)
    inputs = tuple(
        CallInput(
            operand.shape(sizes), graph.tensors[tensor].dtype, graph.tensors[tensor].requires_grad, upper
        )
        for tensor, operand in zip(op.inputs, op.space.inputs, strict=True)
    )
    local = _at_shapes(localise(op, parts), inputs)
    digest = hashlib.sha256(repr((local, inputs)).encode()).hexdigest()[:24]
    return OpCall(local=local, inputs=inputs, key=f"{op.target} {digest}")


def _at_shapes(local: LocalOp, inputs: Sequence[CallInput]) -> LocalOp:
    """A norm names the shape that it normalises, which is its input's own where a shard has a part of it."""
    whole = local.arguments.get("normalized_shape")
    if not whole:
        return local
    return replace(local, arguments={**local.arguments, "normalized_shape": inputs[0].shape[-len(whole) :]})


def _upper(op: Op, sizes: Sequence[int]) -> int:
    name = _INDEXED.get(op.target.split(".")[1])
    found = (size for dim, size in zip(op.space.dims, sizes, strict=True) if dim.name == name)
    return next(found, 1)
