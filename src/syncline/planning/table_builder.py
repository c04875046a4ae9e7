"""Fills the tables of a search from a graph and a cluster."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from syncline.graph.opgraph import Op, OpGraph, Tensor
from syncline.planning.axes import SearchAxes
from syncline.planning.calibration import Calibration
from syncline.planning.choices import (
    UNUSED,
    Assignments,
    enumerate_assignments,
    input_states,
    output_states,
)
from syncline.planning.folding import Folding, Stream, Use, fold
from syncline.planning.op_costs import local_sizes, op_costs, operand_elements
from syncline.planning.parameter_costs import ParameterCosts, frozen_costs, parameter_costs
from syncline.planning.roles import constant_ops, own_parameters
from syncline.planning.saving import Charge, block_of, find_charges
from syncline.planning.states import States, redistribute_s, whole_for_partial
from syncline.planning.tables import Edge, Node, Tables

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Extra = Mapping[int, Sequence[tuple[int, ...]]]

ADAM_STATE_FACTOR = 2.0


def build_tables(
    graph: OpGraph,
    axes: SearchAxes,
    *,
    state_factor: float = ADAM_STATE_FACTOR,
    extra: Extra | None = None,
    folding: Folding | None = None,
    exhaustive: bool = True,
    calibration: Calibration | None = None,
) -> Tables:
    """The tables of a graph on a cluster.

    Args:
        graph: The captured training step.
        axes: The axes of the search.
        state_factor: Bytes of optimizer state for each byte of a parameter.
        extra: More shardings for some ops, by op id: those of strategies to compare with.
        folding: Which ops are decided together; by default those of equal blocks.
        exhaustive: False to weigh only the shardings of `extra`, which must then have some for every op.
        calibration: What was measured in place of estimates.
    """
    folding = folding or fold(graph)
    nodes = _NodeBuilder(
        graph, axes, state_factor, extra or {}, folding, exhaustive=exhaustive, calibration=calibration
    )
    tables = Tables(graph, axes, folding=folding, calibration=calibration)
    for op_id in folding.weights:
        tables.node_of[op_id] = len(tables.nodes)
        tables.nodes.append(nodes.op_node(graph.ops[op_id]))
    for op in graph.ops:
        tables.node_of[op.id] = tables.node_of[folding.stands_for[op.id]]
    edges = _EdgeBuilder(tables, nodes)
    for stream, count in folding.streams.items():
        edges.connect(stream, count)
    return tables


class _NodeBuilder:
    """Makes nodes; ops that look alike share their arrays."""

    def __init__(
        self,
        graph: OpGraph,
        axes: SearchAxes,
        state_factor: float,
        extra: Extra,
        folding: Folding,
        *,
        exhaustive: bool,
        calibration: Calibration | None,
    ) -> None:
        self._graph = graph
        self._calibration = calibration
        self._axes = axes
        self._state_factor = state_factor
        self._extra = extra
        self._exhaustive = exhaustive
        self._weights = folding.weights
        self._charges = find_charges(graph)
        self._constant = constant_ops(graph)
        self._made: dict[Hashable, Node] = {}

    def op_node(self, op: Op) -> Node:
        own = own_parameters(self._graph, op)
        flags = tuple((self._graph.tensors[t].requires_grad, self._graph.tensors[t].dtype) for t in op.inputs)
        charges = tuple(self._charges[op.id])
        extra = tuple(self._extra.get(op.id, ()))
        key = (op.target, op.space, flags, own, charges, op.saved_extra_bytes, op.is_view, extra)
        key = (*key, op.id in self._constant)
        if key not in self._made:
            self._made[key] = self._make(op, own, charges)
        made = self._made[key]
        return Node(
            made.count,
            op=op,
            assignments=made.assignments,
            costs=made.costs,
            parameters=made.parameters,
            saved_bytes=made.saved_bytes,
            entering_bytes=made.entering_bytes,
            output_bytes=made.output_bytes,
            block=block_of(op),
            weight=self._weights[op.id],
        )

    def _make(self, op: Op, own: tuple[int, ...], charges: tuple[Charge, ...]) -> Node:
        if op.id in self._constant:
            assignments = np.full((1, len(self._axes.axes)), UNUSED, dtype=np.int8)
        elif self._exhaustive:
            assignments = enumerate_assignments(self._graph, op, self._axes, self._extra.get(op.id, ()))
        else:
            given = list(dict.fromkeys(self._extra[op.id]))
            assignments = np.array(given, dtype=np.int8).reshape(len(given), len(self._axes.axes))
        parameters: ParameterCosts | None = None
        for place in own:
            states = input_states(op.space, assignments, place)
            costs = self.parameter(self._graph.tensors[op.inputs[place]], states)
            parameters = costs if parameters is None else parameters + costs
        saved, entering = self._saved(op, assignments, charges)
        return Node(
            len(assignments),
            assignments=assignments,
            costs=op_costs(self._graph, op, self._axes, assignments, self._calibration),
            parameters=parameters,
            saved_bytes=saved,
            entering_bytes=entering,
            output_bytes=self._output_bytes(op, assignments),
        )

    def parameter(self, tensor: Tensor, states: States) -> ParameterCosts:
        if not tensor.requires_grad:
            return frozen_costs(self._axes, tensor.bytes, states)
        machine = None if self._calibration is None else self._calibration.machine
        return parameter_costs(
            self._axes, tensor.bytes, states, state_factor=self._state_factor, machine=machine
        )

    def _output_bytes(self, op: Op, assignments: Assignments) -> Floats:
        sizes = local_sizes(op.space, self._axes, assignments)
        each = [
            operand_elements(operand, sizes) * self._graph.tensors[tensor].dtype.itemsize
            for tensor, operand in zip(op.outputs, op.space.outputs, strict=True)
        ]
        return np.max(each, axis=0) if each else np.zeros(len(assignments))

    def _saved(self, op: Op, assignments: Assignments, charges: tuple[Charge, ...]) -> tuple[Floats, Floats]:
        sizes = local_sizes(op.space, self._axes, assignments)
        operands = (*op.space.inputs, *op.space.outputs)
        saved, entering = np.zeros(len(assignments)), np.zeros(len(assignments))
        whole = np.array([op.space.sizes], dtype=np.float64)
        for charge in charges:
            operand = operands[charge.place]
            part = operand_elements(operand, sizes) / operand_elements(operand, whole)
            saved += charge.nbytes * part
            if charge.enters_block:
                entering += charge.nbytes * part
        if op.saved_extra_bytes:
            # Masks, log-probabilities and the like are as large as the largest tensor, and are cut with it.
            largest = max(operands, key=lambda operand: operand_elements(operand, whole)[0])
            part = operand_elements(largest, sizes) / operand_elements(largest, whole)
            saved += op.saved_extra_bytes * part
        return saved, entering


class _EdgeBuilder:
    """Connects nodes along streams of tensors; streams that look alike share their matrices."""

    def __init__(self, tables: Tables, nodes: _NodeBuilder) -> None:
        self._tables = tables
        self._nodes = nodes
        self._states: dict[Hashable, States] = {}
        self._priced: dict[Hashable, tuple[Floats, Floats, Ints, Ints]] = {}
        self._alive: list[States] = []

    def connect(self, stream: Stream, count: int) -> None:
        tensor = self._tables.graph.tensors[stream.tensor]
        if stream.producer is None and len(stream.uses) == 1 and stream.uses[0][1] == 1:
            return
        source = None if stream.producer is None else self._tables.node_of[stream.producer]
        if source is not None and not tensor.requires_grad and self._is_everywhere(source):
            return
        (use, times, inside), target = stream.uses[0], self._tables.node_of[stream.uses[0][0][0]]
        # An op that follows itself, in the next block, is joined to itself by a fork.
        if source is not None and len(stream.uses) == 1 and source != target:
            made = self._made(stream)
            self._edge(tensor, source, made, target, self._taken(use), count * times, inside=inside)
        else:
            self._fork(stream, tensor, source, count)

    def _is_everywhere(self, source: int) -> bool:
        """Whether every device has the whole of what an op makes, whatever is chosen."""
        assignments = self._tables.nodes[source].assignments
        return assignments is not None and bool((assignments == UNUSED).all())

    def _fork(self, stream: Stream, tensor: Tensor, source: int | None, count: int) -> None:
        wanted = [self._taken(use) for use, _, _ in stream.uses]
        key = ("fork", *map(id, wanted))
        if key not in self._states:
            self._states[key] = np.unique(np.concatenate(wanted), axis=0)
        states = self._states[key]
        fork = len(self._tables.nodes)
        parameters = self._nodes.parameter(tensor, states) if source is None else None
        self._tables.nodes.append(
            Node(len(states), tensor=tensor, states=states, parameters=parameters, weight=count)
        )
        if source is not None:
            inside = all(inside for _, _, inside in stream.uses)
            self._edge(tensor, source, self._made(stream), fork, states, count, inside=inside)
        for (use, times, inside), target in zip(stream.uses, wanted, strict=True):
            node = self._tables.node_of[use[0]]
            self._edge(tensor, fork, states, node, target, count * times, inside=inside)

    def _made(self, stream: Stream) -> States:
        if stream.producer is None:
            raise TypeError("a parameter is not made by an op")
        op = self._tables.graph.ops[stream.producer]
        assignments = self._assignments(stream.producer)
        key = ("out", id(assignments), op.space, stream.output)
        return self._cached(key, lambda: output_states(op.space, assignments, stream.output))

    def _taken(self, use: Use) -> States:
        op = self._tables.graph.ops[use[0]]
        assignments = self._assignments(use[0])
        key = ("in", id(assignments), op.space, use[1])
        return self._cached(key, lambda: input_states(op.space, assignments, use[1]))

    def _assignments(self, op_id: int) -> Assignments:
        assignments = self._tables.nodes[self._tables.node_of[op_id]].assignments
        if assignments is None:
            raise TypeError(f"{self._tables.graph.ops[op_id].name} has no shardings")
        return assignments

    def _cached(self, key: Hashable, make: Callable[[], States]) -> States:
        if key not in self._states:
            self._states[key] = make()
        return self._states[key]

    def _edge(
        self,
        tensor: Tensor,
        source: int,
        made: States,
        target: int,
        taken: States,
        weight: int,
        *,
        inside: bool,
    ) -> None:
        from_fork = self._tables.nodes[source].op is None
        key = (tensor.bytes, tensor.requires_grad, id(made), id(taken), from_fork, weight)
        if key not in self._priced:
            self._priced[key] = self._price(tensor, made, taken, weight, from_fork=from_fork)
            # The key holds addresses: what lies there must live on.
            self._alive += [made, taken]
        forward_s, total_s, rows, cols = self._priced[key]
        if total_s.any():
            self._tables.edges.append(
                Edge(source, target, tensor.id, forward_s, total_s, rows, cols, inside_block=inside)
            )

    def _price(
        self, tensor: Tensor, made: States, taken: States, weight: int, *, from_fork: bool
    ) -> tuple[Floats, Floats, Ints, Ints]:
        axes = self._tables.axes
        sources, rows = np.unique(made, axis=0, return_inverse=True)
        targets, cols = np.unique(taken, axis=0, return_inverse=True)
        # What an input's PARTIAL says is of its gradient, what an output's says is of itself.
        held = whole_for_partial(sources) if from_fork else sources
        wanted = sources if from_fork else whole_for_partial(sources)
        forward_s = weight * redistribute_s(axes, tensor.bytes, held, whole_for_partial(targets))
        if not tensor.requires_grad:
            return forward_s, forward_s, rows.ravel(), cols.ravel()
        backward_s = weight * redistribute_s(axes, tensor.bytes, targets, wanted).T
        return forward_s, forward_s + backward_s, rows.ravel(), cols.ravel()
