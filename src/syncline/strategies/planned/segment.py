"""Writes one segment of a program as a `torch.fx` graph."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from syncline.graph.opgraph import Op, TensorKind
from syncline.planning.states import WHOLE
from syncline.strategies.planned.layout import Layout, whole_for_partial
from syncline.strategies.planned.layouts import OpLayouts
from syncline.strategies.planned.ops import EarlyOp
from syncline.strategies.planned.parameters import PlacedParameter
from syncline.strategies.planned.program import Key, Segment, compile_module
from syncline.strategies.planned.redistribute import Redistribution
from syncline.strategies.planned.weights import WithWeights

if TYPE_CHECKING:
    from syncline.strategies.planned.builder import ProgramBuilder

_SOURCES = {
    TensorKind.PARAMETER: "weight",
    TensorKind.BUFFER: "buffer",
    TensorKind.INPUT: "input",
    TensorKind.CONSTANT: "constant",
}


class SegmentWriter:
    """One segment while it is written."""

    def __init__(self, builder: ProgramBuilder, ops: Sequence[Op], *, recomputed: bool) -> None:
        self.takes: list[Key] = []
        self._builder = builder
        self._layouts = builder.layouts
        self._setting = builder.setting
        self._ops = ops
        self._recomputed = recomputed
        self._graph = fx.Graph()
        self._last_taken: fx.Node | None = None
        self._modules: dict[str, nn.Module] = {}
        self._nodes: dict[Key, fx.Node] = {}
        self._made: list[Key] = []
        self._fetched: dict[tuple[int, Layout], fx.Node] = {}

    def write_ops(self) -> None:
        """All ops of the segment."""
        for op in self._ops:
            self._write(self._layouts.ops[op.id])

    def write_updates(self) -> None:
        """The buffers that forward assigns to."""
        for buffer, content in self._builder.graph.buffer_updates.items():
            kept = self._setting.kept[self._builder.graph.tensors[buffer].name]
            self._copy_into(buffer, self._fetch(content, kept))

    def finish(self, needed: Collection[Key], *, optimise: bool) -> Segment:
        """The segment, giving those of its values that are needed."""
        self._pull_early_ops_up()
        gives = tuple(key for key in self._made if key in needed)
        self._graph.output(tuple(self._nodes[key] for key in gives))
        module = fx.GraphModule(self._modules, self._graph)
        lets_go = tuple(key for key in self.takes if key not in needed)
        run = compile_module(module, optimise=optimise)
        return Segment(run, tuple(self.takes), gives, self._recomputed, lets_go)

    def _write(self, layouts: OpLayouts) -> None:
        op = layouts.op
        weights = [self._temporary(tensor) for tensor in op.inputs]
        if any(weights):
            outputs = self._write_with_weights(layouts, weights)
        else:
            inputs = [self._fetch(tensor, layouts.inputs[place]) for place, tensor in enumerate(op.inputs)]
            emit = self._builder.emitter.emit
            # What begins early gives no tensor, which torch.compile could not pass on.
            early = not self._setting.optimise
            outputs = emit(self._graph, self._modules, layouts, inputs, early=early)
        for tensor, node in zip(op.outputs, outputs, strict=True):
            self._add(("made", tensor), node)
            shared = self._layouts.shared.get(tensor)
            if shared is not None:
                self._add(("shared", tensor), self._redistributed(node, self._layouts.made[tensor], shared))
        for tensor in op.updates:
            self._write_back(layouts, tensor)

    def _write_with_weights(
        self, layouts: OpLayouts, weights: Sequence[PlacedParameter | None]
    ) -> list[fx.Node]:
        """The op with its temporary weights inside, which the graph does not see."""
        builder, op = self._builder, layouts.op
        inside = fx.Graph()
        modules: dict[str, nn.Module] = {}
        inputs = [inside.placeholder(f"x{place}") for place in range(len(op.inputs))]
        inside.output(tuple(builder.emitter.emit(inside, modules, layouts, inputs)))
        run = fx.GraphModule(modules, inside).forward
        name = f"op_{op.id}"
        self._modules[name] = WithWeights(run, weights, builder.order, self._setting.recomputing)
        given = [
            self._fetch(tensor, layouts.inputs[place])
            for place, tensor in enumerate(op.inputs)
            if weights[place] is None
        ]
        result = self._graph.call_module(name, tuple(given))
        return [
            self._graph.call_function(operator.getitem, (result, place)) for place in range(len(op.outputs))
        ]

    def _pull_early_ops_up(self) -> None:
        """Begin what may begin early as soon as its inputs are there, if those are made of nothing but the
        segment's own by plain ops."""
        begun = [node for node in self._graph.nodes if isinstance(self._modules.get(node.target), EarlyOp)]
        for node in begun:
            needed = _plain_ancestors(node)
            if needed is None or self._last_taken is None:
                continue
            last = self._last_taken
            for one in [*(other for other in self._graph.nodes if other in needed), node]:
                last.append(one)
                last = one

    def _temporary(self, tensor: int) -> PlacedParameter | None:
        described = self._builder.graph.tensors[tensor]
        if described.kind is not TensorKind.PARAMETER:
            return None
        placed = self._setting.placed.get(described.name)
        return placed if placed is not None and placed.is_temporary else None

    def _fetch(self, tensor: int, wanted: Layout) -> fx.Node:
        """A tensor in the layout that an op wants."""
        found = self._fetched.get((tensor, wanted))
        if found is None:
            key, given, is_input_like = self._source(tensor)
            found = self._redistributed(self._value(key), given, wanted, is_input_like=is_input_like)
            self._fetched[tensor, wanted] = found
        return found

    def _source(self, tensor: int) -> tuple[Key, Layout, bool]:
        """Where a tensor comes from, its layout there, and whether that speaks of gradients."""
        if tensor in self._builder.constants:
            return ("constant", tensor), (WHOLE,) * len(self._setting.rows), False
        described = self._builder.graph.tensors[tensor]
        if described.kind is TensorKind.ACTIVATION:
            if tensor in self._layouts.unreduced:
                return ("made", tensor), self._layouts.unreduced[tensor], True
            shared = self._layouts.shared.get(tensor)
            if shared is not None:
                return ("shared", tensor), shared, True
            return ("made", tensor), self._layouts.made[tensor], False
        key = (_SOURCES[described.kind], tensor)
        if described.kind is TensorKind.INPUT:
            return key, self._setting.rows if described.shape else (WHOLE,) * len(self._setting.rows), False
        kept = self._setting.kept[described.name]
        return key, kept, described.kind is TensorKind.PARAMETER

    def _redistributed(
        self, node: fx.Node, given: Layout, wanted: Layout, *, is_input_like: bool = False
    ) -> fx.Node:
        if given == wanted and (is_input_like or given == whole_for_partial(given)):
            return node
        change = Redistribution(self._setting.mesh, given, wanted, gradient_may_be_partial=is_input_like)
        if not change.is_needed:
            return node
        name = f"edge_{len(self._modules)}"
        self._modules[name] = change
        return self._graph.call_module(name, (node,))

    def _write_back(self, layouts: OpLayouts, buffer: int) -> None:
        """Bring what an op did to its copy of a buffer to the buffer itself."""
        name = self._builder.graph.tensors[buffer].name
        wanted = whole_for_partial(layouts.inputs[layouts.op.inputs.index(buffer)])
        if self._setting.kept[name] == wanted:
            return
        copy = self._fetched[buffer, layouts.inputs[layouts.op.inputs.index(buffer)]]
        self._copy_into(buffer, self._redistributed(copy, wanted, self._setting.kept[name]))

    def _copy_into(self, buffer: int, content: fx.Node) -> None:
        self._graph.call_function(torch.ops.aten.copy_.default, (self._value(("buffer", buffer)), content))

    def _value(self, key: Key) -> fx.Node:
        if key not in self._nodes:
            with self._graph.inserting_after(self._last_taken):
                node = self._graph.placeholder(f"{key[0]}_{key[1]}")
            self._last_taken = self._nodes[key] = node
            self.takes.append(key)
        return self._nodes[key]

    def _add(self, key: Key, node: fx.Node) -> None:
        self._nodes[key] = node
        self._made.append(key)


def _plain_ancestors(node: fx.Node) -> set[fx.Node] | None:
    """All nodes that a node is made of but for placeholders; None if one of them is more than a plain op."""
    found: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        if one.op == "placeholder" or one in found:
            continue
        if one.op != "call_function":
            return None
        found.add(one)
        waiting += one.all_input_nodes
    return found
