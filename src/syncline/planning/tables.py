"""From a graph and a cluster to the tables that the search adds up.

The variables of the search:

- every op, with its shardings;
- every activation with several consumers (a *fork*), with the layouts that these ask for: so that it is
  redistributed, and its gradient reduced, once and not for each consumer;
- every parameter with several consumers (tied weights), likewise.

Tables are by distinct layout, and shared between all edges and ops that look alike: a model of 80 equal
layers has the tables of one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from syncline.graph.opgraph import Op, OpGraph, Tensor, TensorKind
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import Assignments, enumerate_assignments, input_states, output_states
from syncline.planning.op_costs import OpCosts, local_sizes, op_costs, operand_elements
from syncline.planning.parameter_costs import ParameterCosts, frozen_costs, parameter_costs
from syncline.planning.saving import block_of, find_charges
from syncline.planning.states import States, redistribute_s, whole_for_partial

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ADAM_STATE_FACTOR = 2.0


@dataclass(frozen=True)
class Node:
    """A variable of the search."""

    count: int
    """How many choices it has."""
    op: Op | None = None
    tensor: Tensor | None = None
    """Of a fork or a tied parameter."""
    assignments: Assignments | None = None
    states: States | None = None
    costs: OpCosts | None = None
    parameters: ParameterCosts | None = None
    saved_bytes: Floats | None = None
    """Kept for backward."""
    entering_bytes: Floats | None = None
    """The part of them that recomputing the block needs all the same."""
    block: str | None = None


@dataclass(frozen=True)
class Edge:
    """A tensor on its way from one variable to another; matrices are by layout."""

    source: int
    target: int
    tensor: int
    forward_s: Floats
    total_s: Floats
    """Forward and backward; edges that look alike share the very arrays."""
    rows: Ints
    """For each choice of the source, its row."""
    cols: Ints
    inside_block: bool


@dataclass
class Tables:
    """All variables and edges of one search."""

    graph: OpGraph
    axes: SearchAxes
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    @property
    def space_size(self) -> int:
        """How many plans there are."""
        size = 1
        for node in self.nodes:
            if node.op is not None:
                size *= node.count
        return size


def build_tables(
    graph: OpGraph,
    axes: SearchAxes,
    *,
    state_factor: float = ADAM_STATE_FACTOR,
    extra: Mapping[int, Sequence[tuple[int, ...]]] | None = None,
) -> Tables:
    """The tables of a graph on a cluster.

    Args:
        graph: The captured training step.
        axes: The axes of the search.
        state_factor: Bytes of optimizer state for each byte of a parameter.
        extra: More shardings for some ops, by op id: those of strategies to compare with.
    """
    return _Builder(graph, axes, state_factor, extra or {}).build()


class _Builder:
    def __init__(
        self,
        graph: OpGraph,
        axes: SearchAxes,
        state_factor: float,
        extra: Mapping[int, Sequence[tuple[int, ...]]],
    ) -> None:
        self._graph = graph
        self._axes = axes
        self._state_factor = state_factor
        self._extra = extra
        self._charges = find_charges(graph)
        self._cache: dict[Hashable, object] = {}
        self._tables = Tables(graph, axes)

    def build(self) -> Tables:
        uses = self._find_uses()
        for op in self._graph.ops:
            self._tables.nodes.append(self._op_node(op, uses))
        for tensor in self._graph.tensors:
            self._connect(tensor, uses[tensor.id])
        return self._tables

    def _find_uses(self) -> list[list[tuple[int, int]]]:
        uses: list[list[tuple[int, int]]] = [[] for _ in self._graph.tensors]
        for op in self._graph.ops:
            for place, tensor in enumerate(op.inputs):
                uses[tensor].append((op.id, place))
        return uses

    def _op_node(self, op: Op, uses: list[list[tuple[int, int]]]) -> Node:
        own = tuple(
            place
            for place, tensor in enumerate(op.inputs)
            if self._graph.tensors[tensor].kind is TensorKind.PARAMETER and len(uses[tensor]) == 1
        )
        flags = tuple((self._graph.tensors[t].requires_grad, self._graph.tensors[t].dtype) for t in op.inputs)
        charges = tuple((c.place, c.nbytes, c.enters_block) for c in self._charges[op.id])
        extra = tuple(self._extra.get(op.id, ()))
        key = ("op", op.target, op.space, flags, own, charges, op.saved_extra_bytes, op.is_view, extra)
        made = self._cache.get(key)
        if not isinstance(made, Node):
            made = self._cache[key] = self._make_op_node(op, own)
        return Node(
            made.count,
            op=op,
            assignments=made.assignments,
            costs=made.costs,
            parameters=made.parameters,
            saved_bytes=made.saved_bytes,
            entering_bytes=made.entering_bytes,
            block=block_of(op),
        )

    def _make_op_node(self, op: Op, own: tuple[int, ...]) -> Node:
        assignments = enumerate_assignments(op, self._axes, self._extra.get(op.id, ()))
        parameters: ParameterCosts | None = None
        for place in own:
            states = input_states(op.space, assignments, place)
            costs = self._parameter(self._graph.tensors[op.inputs[place]], states)
            parameters = costs if parameters is None else parameters + costs
        saved, entering = self._saved(op, assignments)
        return Node(
            len(assignments),
            assignments=assignments,
            costs=op_costs(self._graph, op, self._axes, assignments),
            parameters=parameters,
            saved_bytes=saved,
            entering_bytes=entering,
        )

    def _parameter(self, tensor: Tensor, states: States) -> ParameterCosts:
        if not tensor.requires_grad:
            return frozen_costs(self._axes, tensor.bytes, states)
        return parameter_costs(self._axes, tensor.bytes, states, state_factor=self._state_factor)

    def _saved(self, op: Op, assignments: Assignments) -> tuple[Floats, Floats]:
        sizes = local_sizes(op.space, self._axes, assignments)
        operands = (*op.space.inputs, *op.space.outputs)
        saved, entering = np.zeros(len(assignments)), np.zeros(len(assignments))
        whole = np.array([op.space.sizes], dtype=np.float64)
        for charge in self._charges[op.id]:
            operand = operands[charge.place]
            part = operand_elements(operand, sizes) / operand_elements(operand, whole)
            saved += charge.nbytes * part
            if charge.enters_block:
                entering += charge.nbytes * part
        if op.saved_extra_bytes and op.space.outputs:
            output = op.space.outputs[0]
            saved += op.saved_extra_bytes * operand_elements(output, sizes) / operand_elements(output, whole)
        return saved, entering

    def _connect(self, tensor: Tensor, uses: list[tuple[int, int]]) -> None:
        producer = self._graph.producers[tensor.id]
        is_tied = tensor.kind is TensorKind.PARAMETER and len(uses) > 1
        if producer is None and not is_tied:
            return
        if len(uses) == 1 and producer is not None:
            op, place = uses[0]
            self._edge(tensor, producer, self._made_states(tensor, producer), op, self._taken(op, place))
        elif len(uses) > 1:
            self._fork(tensor, producer, uses)

    def _fork(self, tensor: Tensor, producer: int | None, uses: list[tuple[int, int]]) -> None:
        wanted = [self._taken(op, place) for op, place in uses]
        states = np.unique(np.concatenate(wanted), axis=0)
        fork = len(self._tables.nodes)
        parameters = self._parameter(tensor, states) if producer is None else None
        self._tables.nodes.append(Node(len(states), tensor=tensor, states=states, parameters=parameters))
        if producer is not None:
            self._edge(tensor, producer, self._made_states(tensor, producer), fork, states)
        for (op, _), target in zip(uses, wanted, strict=True):
            self._edge(tensor, fork, states, op, target)

    def _made_states(self, tensor: Tensor, producer: int) -> States:
        op = self._graph.ops[producer]
        assignments = self._assignments(producer)
        output = op.outputs.index(tensor.id)
        key = ("out", id(assignments), op.space, output)
        return self._cached_states(key, lambda: output_states(op.space, assignments, output))

    def _taken(self, op_id: int, place: int) -> States:
        op = self._graph.ops[op_id]
        assignments = self._assignments(op_id)
        key = ("in", id(assignments), op.space, place)
        return self._cached_states(key, lambda: input_states(op.space, assignments, place))

    def _assignments(self, op_id: int) -> Assignments:
        assignments = self._tables.nodes[op_id].assignments
        if assignments is None:
            raise TypeError(f"{self._graph.ops[op_id].name} has no shardings")
        return assignments

    def _cached_states(self, key: Hashable, make: Callable[[], States]) -> States:
        found = self._cache.get(key)
        if not isinstance(found, np.ndarray):
            found = self._cache[key] = make()
        return found

    def _edge(self, tensor: Tensor, source: int, made: States, target: int, taken: States) -> None:
        from_fork = self._tables.nodes[source].op is None
        key = ("edge", tensor.bytes, tensor.requires_grad, id(made), id(taken), from_fork)
        found = self._cache.get(key)
        if not isinstance(found, tuple):
            priced = self._price(tensor, made, taken, from_fork=from_fork)
            # The key holds addresses: keep what lies there alive.
            found = self._cache[key] = (*priced, made, taken)
        forward_s, total_s, rows, cols = found[:4]
        nodes = self._tables.nodes
        block = nodes[source].block
        self._tables.edges.append(
            Edge(
                source,
                target,
                tensor.id,
                forward_s,
                total_s,
                rows,
                cols,
                inside_block=block is not None and block == nodes[target].block,
            )
        )

    def _price(
        self, tensor: Tensor, made: States, taken: States, *, from_fork: bool
    ) -> tuple[Floats, Floats, Ints, Ints]:
        sources, rows = np.unique(made, axis=0, return_inverse=True)
        targets, cols = np.unique(taken, axis=0, return_inverse=True)
        # What an input's PARTIAL says is of its gradient, what an output's says is of itself.
        held = whole_for_partial(sources) if from_fork else sources
        wanted = sources if from_fork else whole_for_partial(sources)
        forward_s = redistribute_s(self._axes, tensor.bytes, held, whole_for_partial(targets))
        if not tensor.requires_grad:
            return forward_s, forward_s, rows.ravel(), cols.ravel()
        backward_s = redistribute_s(self._axes, tensor.bytes, targets, wanted).T
        return forward_s, forward_s + backward_s, rows.ravel(), cols.ravel()
