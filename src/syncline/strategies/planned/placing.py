"""Decides how each parameter and buffer of a model lies on the mesh under a plan."""

from __future__ import annotations

from collections.abc import Sequence

from syncline.graph.opgraph import OpGraph, Tensor, TensorKind
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import Plan
from syncline.planning.states import WHOLE
from syncline.strategies.planned.layout import Layout, axes_in, whole_for_partial
from syncline.strategies.planned.layouts import GraphLayouts, OpLayouts
from syncline.strategies.planned.ranks import LiveMesh
from syncline.strategies.planned.storage import Placing, choose_share


def place_tensors(layouts: GraphLayouts, plan: Plan, mesh: LiveMesh) -> dict[str, Placing]:
    """For every parameter and buffer of the graph, how it lies."""
    inner = _innermost(plan)
    found: dict[str, Placing] = {}
    for tensor in layouts.graph.tensors:
        if tensor.kind is TensorKind.PARAMETER:
            found[tensor.name] = _parameter(tensor, layouts, plan, mesh, inner)
        elif tensor.kind is TensorKind.BUFFER:
            layout = _buffer_layout(tensor, layouts)
            found[tensor.name] = Placing(tensor.name, tensor.shape, layout)
    return found


def _parameter(
    tensor: Tensor, layouts: GraphLayouts, plan: Plan, mesh: LiveMesh, inner: Sequence[int]
) -> Placing:
    users = layouts.graph.consumers[tensor.id]
    if not users:
        return Placing(tensor.name, tensor.shape, (WHOLE,) * len(plan.axes))
    wanted = layouts.wanted(tensor.id)
    if len(users) == 1 and layouts.graph.ops[users[0]].inputs.count(tensor.id) == 1:
        only = layouts.ops[users[0]]
        strided = _strided(tensor, only)
        if strided is not None:
            return strided
        keep = plan.ops[only.op.name].keep
    else:
        keep = plan.tied.get(tensor.name, Keeping.REPLICATED)
    layout = layouts.shared.get(tensor.id, wanted[0])
    if not tensor.requires_grad or not _is_plainly_used(tensor, layouts.graph, wanted):
        keep = Keeping.REPLICATED
    leaf = tuple(size // mesh.members(axes_in(layout, dim)) for dim, size in enumerate(tensor.shape))
    share = choose_share(leaf, layout, keep, mesh, inner)
    return Placing(tensor.name, tensor.shape, layout, keep=keep, share=share)


def _strided(tensor: Tensor, user: OpLayouts) -> Placing | None:
    """The placing of a parameter whose op cuts an inner factor of one of its dims."""
    place = user.op.inputs.index(tensor.id)
    operand = user.op.space.inputs[place]
    own = {dim: axes for dim, axes in user.split.items() if operand.has(dim)}
    if all((operand.position(dim) or (0, 0))[1] == 0 for dim in own):
        return None
    return Placing(
        tensor.name,
        tensor.shape,
        user.inputs[place],
        operand=operand,
        sizes=user.op.space.sizes,
        split=tuple(own.items()),
    )


def _is_plainly_used(tensor: Tensor, graph: OpGraph, wanted: Sequence[Layout]) -> bool:
    """Whether weights can be fetched for each op that uses them and given back after it."""
    return len(wanted) == 1 and not any(graph.ops[user].is_view for user in graph.consumers[tensor.id])


def _buffer_layout(tensor: Tensor, layouts: GraphLayouts) -> Layout:
    """That of the op which updates it, so that it can do so in place; others lie whole."""
    for user in layouts.graph.consumers[tensor.id]:
        one = layouts.ops[user]
        if tensor.id in one.op.updates:
            return whole_for_partial(one.inputs[one.op.inputs.index(tensor.id)])
    return (WHOLE,) * len(layouts.axes)


def _innermost(plan: Plan) -> tuple[int, ...]:
    level = plan.axes[-1].level if plan.axes else ""
    return tuple(index for index, axis in enumerate(plan.axes) if axis.level == level)
