"""A node of the paper's graph, a layer: its iteration dims, which of them its tensors have, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from syncline.graph import IterationSpace
from syncline.planning.pase.terms import Gemm, Term

Placement: TypeAlias = tuple[tuple[int, ...], ...]
"""For each dim of a tensor the dims of the layer that it is made of, outermost first."""


class LayerKind(StrEnum):
    """What a layer does, as far as experts and fused pointwise ops care."""

    LINEAR = "linear"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    ELEMENTWISE = "elementwise"
    LOSS = "loss"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class LayerDim:
    """One iteration dim of a layer."""

    name: str
    size: int
    splittable: bool = True


@dataclass(frozen=True, slots=True)
class Nest:
    """The loop nest of a layer: what its op alone tells."""

    kind: LayerKind
    dims: tuple[LayerDim, ...]
    inputs: tuple[Placement, ...]
    """Of each input of the op."""
    outputs: tuple[Placement, ...]
    """Of each output of the op."""
    terms: tuple[Term, ...] = ()
    """Their sum is the cost of the layer."""

    @property
    def product(self) -> Gemm | None:
        """The first matrix product of the layer."""
        return next((term for term in self.terms if isinstance(term, Gemm)), None)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in its graph."""

    nest: Nest
    batch: int | None
    """The dim that is the batch, or has it outermost."""
    joined: tuple[str, ...]
    """The names of the ops that the layer is made of: most often one."""
    fused: tuple[str, ...] = ()
    """The names of the ops after it that cost nothing or are priced with it."""


def nest_of(
    space: IterationSpace,
    kind: LayerKind,
    terms: Sequence[Term] = (),
    *,
    whole: Sequence[int] = (),
) -> Nest:
    """The nest with the dims and tensors of an iteration space.

    Args:
        space: of the op.
        kind: of the layer.
        terms: of its cost.
        whole: the dims that cannot be split.
    """
    return Nest(
        kind=kind,
        dims=tuple(LayerDim(dim.name, dim.size, index not in whole) for index, dim in enumerate(space.dims)),
        inputs=tuple(operand.dims for operand in space.inputs),
        outputs=tuple(operand.dims for operand in space.outputs),
        terms=tuple(terms),
    )
