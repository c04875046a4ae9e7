"""Traces a block that a model repeats twice, and copies it for the other times.

Tracing an op takes milliseconds, so a model of many layers takes long; copying its nodes takes no time. A
block is copied only where it must come out the same: its module is interchangeable with the first one's,
the call looks the same, nothing is written in place, and the second time it did come out the same.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import fx, nn

from syncline._torch_compat import OpOverload, Trace, storage_key
from syncline.graph.inplace import is_write
from syncline.graph.interchangeable import description, families


@contextmanager
def repeats_copied(root: nn.Module) -> Generator[None, None, None]:
    """Within, calls of interchangeable modules are traced twice and copied from then on.

    Args:
        root: Its submodules are given other classes for the time being.
    """
    changed: list[tuple[nn.Module, type[nn.Module]]] = []
    try:
        for members in families(root):
            family = _Family()
            for member in members:
                changed.append((member, type(member)))
                member.__class__ = _watched(type(member), member, family)
        yield
    finally:
        for module, original in changed:
            module.__class__ = original


def _watched(original: type[nn.Module], member: nn.Module, family: _Family) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def run() -> Any:
            return original.forward(self, *args, **kwargs)

        trace = Trace.running()
        return run() if trace is None else family.call(trace, member, run, (args, kwargs))

    names = {"forward": forward, "__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (original,), names)


@dataclass(frozen=True, slots=True)
class _Recording:
    """The nodes that one call of a block added to the graph, and what they came from and gave."""

    nodes: tuple[fx.Node, ...]
    sources: tuple[fx.Node, ...]
    """The nodes of the call's tensors, then of the module's weights."""
    outputs: Any
    """What the call returned, with nodes for tensors."""
    path: str
    """The block's path."""
    values: dict[fx.Node, torch.Tensor]
    """The tensors behind the outputs."""
    views: dict[fx.Node, int]
    """The nodes that are views of a source, and of which."""


class _Family:
    """What is known of a group of interchangeable modules."""

    def __init__(self) -> None:
        self._first: dict[Any, _Recording] = {}
        self._confirmed: set[Any] = set()
        self._different = False

    def call(self, trace: Trace, member: nn.Module, run: Any, given: Any) -> Any:
        """Calls a member: by running it, or by copying what an earlier call recorded."""
        key, tensors = _signature(given)
        sources = [trace.node(tensor) for tensor in (*tensors, *_weights(member))]
        if self._different or key is None or None in sources:
            return run()
        nodes = tuple(node for node in sources if node is not None)
        first = self._first.get(key)
        if first is not None and key in self._confirmed:
            return _copy(trace, first, nodes)
        before = description(member)
        size = len(trace.graph.nodes)
        result = run()
        added = tuple(islice(trace.graph.nodes, size, None))
        recording = _record(trace, added, nodes, result)
        if recording is None or description(member) != before:
            self._different = True
        elif first is None:
            self._first[key] = recording
        elif _same(first, recording):
            self._confirmed.add(key)
        else:
            self._different = True
        return result


def _weights(module: nn.Module) -> list[torch.Tensor]:
    """All weights in a fixed order, tied ones each time."""
    return [
        *(tensor for _, tensor in module.named_parameters(remove_duplicate=False)),
        *(tensor for _, tensor in module.named_buffers(remove_duplicate=False)),
    ]


def _signature(given: Any) -> tuple[Any, list[torch.Tensor]]:
    """What a call looks like, and its tensors; None when it has an argument that cannot be compared."""
    tensors: list[torch.Tensor] = []

    def look(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            again = next((place for place, one in enumerate(tensors) if one is value), None)
            tensors.append(value)
            form = (tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad)
            return form, again
        if isinstance(value, tuple | list):
            return type(value), tuple(map(look, value))
        if isinstance(value, dict):
            return type(value), tuple((key, look(item)) for key, item in value.items())
        if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
            return type(value), value
        raise TypeError

    try:
        return (look(given), torch.is_grad_enabled()), tensors
    except TypeError:
        return None, []


def _record(
    trace: Trace, added: tuple[fx.Node, ...], sources: tuple[fx.Node, ...], result: Any
) -> _Recording | None:
    """A call that just ran; None if copying its nodes would not do the same."""
    if any(isinstance(node.target, OpOverload) and is_write(node.target) for node in added):
        return None
    values: dict[fx.Node, torch.Tensor] = {}

    def with_nodes(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = trace.node(value)
            if node is None or node not in added:
                raise TypeError
            values[node] = value
            return node
        if isinstance(value, tuple | list) and type(value) in (tuple, list):
            return type(value)(map(with_nodes, value))
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError

    try:
        outputs = with_nodes(result)
    except TypeError:
        return None
    views = _views(added, sources)
    if any(node in views for node in values):
        return None
    return _Recording(added, sources, outputs, trace.module_path, values, views)


def _views(added: tuple[fx.Node, ...], sources: tuple[fx.Node, ...]) -> dict[fx.Node, int]:
    memory = {storage_key(node.meta["val"]): place for place, node in enumerate(sources)}
    views: dict[fx.Node, int] = {}
    for node in added:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(first, torch.Tensor) and storage_key(first) in memory:
            views[node] = memory[storage_key(first)]
    return views


def _same(first: _Recording, second: _Recording) -> bool:
    """Whether two calls added the same nodes, each to its own sources."""
    if len(first.nodes) != len(second.nodes):
        return False
    twins = _paired(first.sources, second.sources)
    for one, other in zip(first.nodes, second.nodes, strict=True):
        args, kwargs = (
            fx.map_arg(one.args, lambda n: twins.get(n, n)),
            fx.map_arg(one.kwargs, lambda n: twins.get(n, n)),
        )
        if (one.op, one.target, args, kwargs) != (other.op, other.target, other.args, other.kwargs):
            return False
        twins[one] = other
    return _mapped(first.outputs, twins) == second.outputs


def _paired(ours: Sequence[fx.Node], theirs: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    return dict(zip(ours, theirs, strict=True))


def _mapped(value: Any, twins: dict[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return twins[value]
    return type(value)(_mapped(item, twins) for item in value) if isinstance(value, tuple | list) else value


def _copy(trace: Trace, first: _Recording, sources: tuple[fx.Node, ...]) -> Any:
    """Adds the nodes of an earlier call again, for other sources, and gives what it would return."""
    twins = _paired(first.sources, sources)
    with trace.paused():
        for node in first.nodes:
            twin = trace.graph.node_copy(node, lambda one: twins.get(one, one))
            twin.meta = dict(node.meta)
            twin.meta["nn_module_stack"] = _moved(
                node.meta.get("nn_module_stack", {}), first.path, trace.module_path
            )
            if node in first.views:
                twin.meta["val"] = _seen(node.meta["val"], sources[first.views[node]].meta["val"])
            twins[node] = twin
        fresh = {node: trace.bind(_like(value), twins[node]) for node, value in first.values.items()}
    return _mapped(first.outputs, fresh)


def _seen(view: Any, source: torch.Tensor) -> Any:
    """The same view of another source."""
    if isinstance(view, tuple | list):
        return type(view)(_seen(one, source) for one in view)
    return source.as_strided(view.shape, view.stride(), view.storage_offset())


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor that looks the same to autograd: not a leaf if it needs a gradient."""
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return new.requires_grad_().clone() if tensor.requires_grad else new


def _moved(stack: dict[str, Any], before: str, now: str) -> dict[str, Any]:
    """The modules around a node, with the block that is called now in place of the one recorded."""

    def moved(path: str) -> str:
        return path.replace(before, now, 1)

    return {moved(key): (moved(path), *rest) for key, (path, *rest) in stack.items()}
