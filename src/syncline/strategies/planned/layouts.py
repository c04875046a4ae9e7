"""What a plan means for the tensors of a graph: the layout of each as it is made and as each op wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from syncline.cluster.mesh import MeshAxis
from syncline.cluster.topology import Cluster, Device, Level
from syncline.graph.opgraph import Op, OpGraph, TensorKind
from syncline.graph.space import DimKind
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import UNUSED, input_states, output_states
from syncline.planning.plan import Axis, Plan
from syncline.planning.states import PARTIAL, WHOLE, redistribute_s
from syncline.planning.states import whole_for_partial as whole_states
from syncline.strategies.planned.layout import Layout


@dataclass(frozen=True)
class OpLayouts:
    """One op under a plan."""

    op: Op
    assignment: tuple[int, ...]
    """For each axis, the iteration dim that it splits, or UNUSED."""
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]

    @cached_property
    def split(self) -> dict[int, tuple[int, ...]]:
        """For each iteration dim that is split, the axes that split it, in mesh order."""
        found: dict[int, tuple[int, ...]] = {}
        for axis, dim in enumerate(self.assignment):
            if dim != UNUSED:
                found[dim] = (*found.get(dim, ()), axis)
        return found

    @property
    def exchanges(self) -> bool:
        """Whether its shards have to talk to each other inside the op."""
        return any(self.op.space.dims[dim].kind is DimKind.COLLECTIVE for dim in self.split)


@dataclass(frozen=True)
class GraphLayouts:
    """A graph under a plan."""

    graph: OpGraph
    axes: tuple[Axis, ...]
    ops: tuple[OpLayouts, ...]
    made: Mapping[int, Layout]
    """For each tensor that an op makes, its layout."""
    shared: dict[int, Layout] = field(default_factory=dict)
    """For tensors that ops want in several layouts, the one in which it lies between them: as an op's input,
    so that where it says PARTIAL gradients are added up before they are reduced."""
    unreduced: dict[int, Layout] = field(default_factory=dict)
    """For views of parameters, the layout of the one op that uses them: summands of the gradient pass through
    the view, and are reduced with those of other parameters."""

    def wanted(self, tensor: int) -> tuple[Layout, ...]:
        """The different layouts in which ops want a tensor."""
        found: dict[Layout, None] = {}
        for user in self.graph.consumers[tensor]:
            layouts = self.ops[user]
            for place, taken in enumerate(layouts.op.inputs):
                if taken == tensor:
                    found[layouts.inputs[place]] = None
        return tuple(found)


def lay_out(graph: OpGraph, plan: Plan) -> GraphLayouts:
    """The layouts of all tensors under a plan that was checked for the graph."""
    ops = tuple(_op_layouts(op, plan) for op in graph.ops)
    made = {tensor: layout for one in ops for tensor, layout in zip(one.op.outputs, one.outputs, strict=True)}
    found = _let_sums_through(GraphLayouts(graph, plan.axes, ops, made))
    axes = _nominal(plan.axes)
    for tensor in graph.tensors:
        wanted = found.wanted(tensor.id)
        if len(wanted) < 2 or tensor.kind not in (TensorKind.ACTIVATION, TensorKind.PARAMETER):
            continue
        is_free = tensor.kind is TensorKind.PARAMETER
        given = None if is_free else made[tensor.id]
        best = _between(axes, tensor.bytes, given, wanted, both=tensor.requires_grad)
        if best is not None:
            found.shared[tensor.id] = best
    return found


def _let_sums_through(layouts: GraphLayouts) -> GraphLayouts:
    """With summands of gradients passing through views of parameters, where nothing stands in their way."""
    unreduced = {}
    ops = list(layouts.ops)
    for one in layouts.ops:
        wanted = layouts.wanted(one.op.outputs[0]) if _views_parameter(one, layouts.graph) else ()
        if len(wanted) == 1 and PARTIAL in wanted[0] and {*wanted[0]} <= {PARTIAL, WHOLE}:
            unreduced[one.op.outputs[0]] = wanted[0]
            ops[one.op.id] = replace(one, inputs=(wanted[0],))
    return replace(layouts, ops=tuple(ops), unreduced=unreduced)


def _views_parameter(one: OpLayouts, graph: OpGraph) -> bool:
    """Whether an op is the whole view of a parameter that nothing else uses."""
    op = one.op
    if not op.is_view or one.split or len(op.inputs) != 1 or len(op.outputs) != 1:
        return False
    tensor = graph.tensors[op.inputs[0]]
    return tensor.kind is TensorKind.PARAMETER and len(graph.consumers[tensor.id]) == 1


def _op_layouts(op: Op, plan: Plan) -> OpLayouts:
    dims = {axis: op.space.index(dim) for dim, axes in plan.ops[op.name].split.items() for axis in axes}
    assignment = tuple(dims.get(axis.name, UNUSED) for axis in plan.axes)
    rows = np.array([assignment], dtype=np.int8).reshape(1, len(plan.axes))
    return OpLayouts(
        op,
        assignment,
        tuple(_layout(input_states(op.space, rows, place)) for place in range(len(op.inputs))),
        tuple(_layout(output_states(op.space, rows, place)) for place in range(len(op.outputs))),
    )


def _layout(states: np.ndarray) -> Layout:
    return tuple(int(state) for state in states[0])


def _between(
    axes: SearchAxes, nbytes: int, given: Layout | None, wanted: Sequence[Layout], *, both: bool
) -> Layout | None:
    """The layout in which a tensor with several users lies best; None to bring it to each by itself."""
    targets = np.array(wanted, dtype=np.int8)
    onward = redistribute_s(axes, nbytes, whole_states(targets), whole_states(targets))
    if both:
        onward = onward + redistribute_s(axes, nbytes, targets, targets).T
    total = onward.sum(axis=1)
    if given is None:
        return wanted[int(total.argmin())]
    source = np.array([given], dtype=np.int8)
    there = redistribute_s(axes, nbytes, source, whole_states(targets))[0]
    if both:
        there = there + redistribute_s(axes, nbytes, targets, whole_states(source))[:, 0]
    best = int((there + total).argmin())
    return wanted[best] if (there + total)[best] < there.sum() else None


def _nominal(axes: Sequence[Axis]) -> SearchAxes:
    """The axes on a cluster whose levels get ten times slower from the inside out.

    Every rank must decide alike, from the plan alone, which does not tell the speed of links.
    """
    names = list(dict.fromkeys(axis.level for axis in reversed(axes)))
    levels = [
        Level(name=name, size=_size(axes, name), bytes_per_s=1e10 / 10**place, latency_s=1e-5 * 10**place)
        for place, name in enumerate(names)
    ]
    device = Device(name="any", flops_per_s=1e12, memory_bytes=1 << 34, memory_bytes_per_s=1e11)
    return SearchAxes(
        Cluster(name="any", device=device, levels=tuple(levels)),
        tuple(MeshAxis(name=one.name, level=names.index(one.level), size=one.size) for one in axes),
    )


def _size(axes: Sequence[Axis], level: str) -> int:
    size = 1
    for axis in axes:
        size *= axis.size if axis.level == level else 1
    return size
