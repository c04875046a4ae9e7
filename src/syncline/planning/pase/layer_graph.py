"""Reads a captured graph as the paper's: layers, and the tensors between them.

What is a layer and what is part of one, in the order in which it is asked:

- ops that do not depend on both an input and a weight (masks, positions, initial states, counters) are
  neither: the paper's graphs do not have them;
- an op with a formula of its own is a layer;
- any other op of one tensor, whose layout it carries on, is fused into the layer before it: views and
  dropout for nothing, pointwise ops (ReLU, scaling) as the paper's `pw`, which counts 3 FLOPs an element
  after a product, 1 after an elementwise op and nothing elsewhere;
- all else is a layer: elementwise ops of two tensors, and what the paper has not.

Two layers are one where the paper has them so: recurrent layers of equal size that follow one another, which
get a dim of their own, and linear layers of equal size and the same module that read the same tensor, such
as queries, keys and values, whose outputs are then side by side.

A batch that was merged with other dims, as when a loss flattens (batch, steps), is taken apart again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from syncline.graph import IterationSpace, Op, Operand, OpGraph, TensorKind
from syncline.planning.pase.carrying import Route, arrive, carry, leave
from syncline.planning.pase.exchange import Edge
from syncline.planning.pase.layer import Layer, LayerKind, Nest, Placement
from syncline.planning.pase.products import BATCH, LAYERS
from syncline.planning.pase.rules import BatchNorm, describe, is_free, is_priced
from syncline.planning.pase.terms import Elementwise, Gemm
from syncline.planning.roles import batch_dims

_PRODUCTS = (
    LayerKind.LINEAR,
    LayerKind.CONVOLUTION,
    LayerKind.EMBEDDING,
    LayerKind.ATTENTION,
    LayerKind.RECURRENT,
)


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The paper's view of a model."""

    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    unpriced: tuple[str, ...]
    """The ops that belong to no layer."""

    def has(self, kind: LayerKind) -> bool:
        """Whether a layer of this kind is in it."""
        return any(layer.nest.kind is kind for layer in self.layers)


def read_layers(graph: OpGraph, batch_norm: BatchNorm = "paper") -> LayerGraph:
    """The layers of a captured graph.

    Args:
        graph: of a model, with or without its loss.
        batch_norm: how batch norm is priced.
    """
    reader = _Reader(graph, batch_norm)
    for op in graph.ops:
        reader.read(op)
    return LayerGraph(tuple(reader.layers), tuple(reader.edges), tuple(reader.unpriced))


class _Reader:
    def __init__(self, graph: OpGraph, batch_norm: BatchNorm) -> None:
        self.layers: list[Layer] = []
        self.edges: list[Edge] = []
        self.unpriced: list[str] = []
        self._graph = graph
        self._batch_norm: BatchNorm = batch_norm
        self._batch = batch_dims(graph)
        self._routes: dict[int, Route] = {}
        self._readers: dict[tuple[int, str, Nest], int] = {}
        self._of_input = [tensor.kind is TensorKind.INPUT for tensor in graph.tensors]
        self._of_weight = [tensor.kind is TensorKind.PARAMETER for tensor in graph.tensors]

    def read(self, op: Op) -> None:
        of_input = any(self._of_input[tensor] for tensor in op.inputs)
        of_weight = any(self._of_weight[tensor] for tensor in op.inputs)
        for tensor in op.outputs:
            self._of_input[tensor], self._of_weight[tensor] = of_input, of_weight
        if not (of_input and of_weight):
            self.unpriced.append(op.name)
        elif is_priced(op) or not self._fuse(op):
            self._add(op)

    def _sources(self, op: Op) -> Iterator[tuple[int, Route]]:
        """The inputs that come from layers, by their places; each tensor once."""
        for tensor in dict.fromkeys(op.inputs):
            if tensor in self._routes:
                yield op.inputs.index(tensor), self._routes[tensor]

    def _fuse(self, op: Op) -> bool:
        sources = list(self._sources(op))
        if len(sources) != 1 or len(set(op.inputs)) != 1 or len(op.outputs) != 1:
            return False
        position, route = sources[0]
        behind = carry(route, op.space, position)
        if behind is None:
            return False
        self._routes[op.outputs[0]] = behind
        layer = self.layers[route.layer]
        nest = layer.nest if is_free(op) else _with_pointwise(layer.nest, route.output)
        self.layers[route.layer] = replace(layer, nest=nest, fused=(*layer.fused, op.name))
        return True

    def _add(self, op: Op) -> None:
        sources = list(self._sources(op))
        merged = self._merged_batch(op, sources)
        space = taken_apart(op.space, self._batch[op.id], merged) if len(merged) > 1 else op.space
        shapes = [self._graph.tensors[tensor].shape for tensor in op.inputs]
        nest = describe(op, space, shapes, self._batch_norm)
        if self._join(op, nest, sources):
            return
        index = len(self.layers)
        batch = BATCH if nest.kind is LayerKind.RECURRENT else self._batch.get(op.id)
        self.layers.append(Layer(nest, batch, (op.name,)))
        self.edges += [arrive(route, index, nest, nest.inputs[position]) for position, route in sources]
        self._leave(op, index)

    def _leave(self, op: Op, index: int) -> None:
        nest = self.layers[index].nest
        for output, tensor in enumerate(op.outputs):
            shape = self._graph.tensors[tensor].shape
            if len(nest.outputs[output]) == len(shape):
                self._routes[tensor] = leave(index, output, nest, shape)

    def _join(self, op: Op, nest: Nest, sources: list[tuple[int, Route]]) -> bool:
        """Makes the op part of a layer that is there already, if the paper would."""
        if [position for position, _ in sources] != [0]:
            return False
        if nest.kind is LayerKind.RECURRENT:
            return self._stack(op, nest, sources[0][1])
        return nest.kind is LayerKind.LINEAR and self._put_beside(op, nest)

    def _stack(self, op: Op, nest: Nest, route: Route) -> bool:
        """Adds a recurrent layer to those before it, if they are alike and only they feed it."""
        before = self.layers[route.layer]
        alike = before.nest.dims[1:] == nest.dims[1:] and before.nest.product == nest.product
        if not alike or before.nest.inputs != nest.inputs or self._is_used_elsewhere(before, op):
            return False
        layers = before.nest.dims[LAYERS]
        dims = (replace(layers, size=layers.size + nest.dims[LAYERS].size), *nest.dims[1:])
        self._grow(route.layer, replace(before.nest, dims=dims), op)
        return True

    def _put_beside(self, op: Op, nest: Nest) -> bool:
        """Adds a linear layer to one of the same module that reads the same tensor."""
        key = (op.inputs[0], op.module.rpartition(".")[0], nest)
        index = self._readers.setdefault(key, len(self.layers))
        if index == len(self.layers):
            return False
        before = self.layers[index].nest
        wider = [
            replace(term, n_times=term.n_times + 1.0) if isinstance(term, Gemm) else term
            for term in before.terms
        ]
        self._grow(index, replace(before, terms=tuple(wider)), op)
        return True

    def _grow(self, index: int, nest: Nest, op: Op) -> None:
        layer = self.layers[index]
        self.layers[index] = replace(layer, nest=nest, joined=(*layer.joined, op.name))
        self._leave(op, index)

    def _is_used_elsewhere(self, layer: Layer, op: Op) -> bool:
        """Whether what the layer gives goes to any op but this one and those fused into the layer."""
        graph, known = self._graph, {*layer.joined, *layer.fused, op.name}
        given = [tensor for name in known - {op.name} for tensor in graph.op(name).outputs]
        users = {graph.ops[user].name for tensor in given for user in graph.consumers[tensor]}
        return bool(users - known) or any(tensor in graph.outputs for tensor in given)

    def _merged_batch(self, op: Op, sources: list[tuple[int, Route]]) -> list[int]:
        """The sizes of the factors that the op's batch dim was merged from; nothing if it was not."""
        for position, route in sources:
            place = op.space.inputs[position].position(self._batch.get(op.id, -1))
            if place is not None and len(op.space.inputs[position].dims[place[0]]) == 1:
                return [factor.size for factor in route.dims[place[0]]]
        return []


def _with_pointwise(nest: Nest, output: int) -> Nest:
    """The nest with one more pointwise op on an output."""
    times = 3.0 if nest.kind in _PRODUCTS else 1.0 if nest.kind is LayerKind.ELEMENTWISE else 0.0
    if not times:
        return nest
    dims = tuple(dim for dims in nest.outputs[output] for dim in dims)
    return replace(nest, terms=(*nest.terms, Elementwise(dims, times)))


def taken_apart(space: IterationSpace, dim: int, sizes: list[int]) -> IterationSpace:
    """The space with one dim as several, outermost first."""
    extra = len(sizes) - 1

    def renumber(index: int) -> tuple[int, ...]:
        if index == dim:
            return tuple(range(dim, dim + extra + 1))
        return (index if index < dim else index + extra,)

    def place(operand: Operand) -> Operand:
        dims: Placement = tuple(
            tuple(number for index in factors for number in renumber(index)) for factors in operand.dims
        )
        return replace(operand, dims=dims)

    old = space.dims[dim]
    parts = [replace(old, name=f"{old.name}.{place}", size=size) for place, size in enumerate(sizes)]
    return replace(
        space,
        dims=(*space.dims[:dim], *parts, *space.dims[dim + 1 :]),
        inputs=tuple(map(place, space.inputs)),
        outputs=tuple(map(place, space.outputs)),
        flop_terms=(),
    )
