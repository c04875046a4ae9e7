"""One op on this rank's shard, as a node of the program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from syncline._torch_compat import OpOverload, schema_arguments, schema_returns
from syncline.graph.local import LocalOp, localise, run_local
from syncline.graph.opgraph import Op, TensorRef, resolve
from syncline.graph.shards import Part
from syncline.strategies.planned.kernels import OpShard, early_start, exchange_kernel
from syncline.strategies.planned.layouts import OpLayouts
from syncline.strategies.planned.randomness import RandomStreams
from syncline.strategies.planned.ranks import LiveMesh


class ShardedOp(nn.Module):
    """An op that needs more than one call: exchanges, masks, scales, random streams, updates of buffers."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self._run = run

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The op's outputs."""
        return self._run(*inputs)


class EarlyOp(nn.Module):
    """What an op begins before its turn."""

    def __init__(self, start: Callable[..., Any]) -> None:
        super().__init__()
        self._start = start

    def forward(self, *inputs: Tensor) -> Any:
        """What the op takes to go on."""
        return self._start(*inputs)


class Recomputing:
    """Whether blocks are being recomputed: what a forward pass changes must then not change again."""

    def __init__(self) -> None:
        self.now = False


class OpEmitter:
    """Writes ops into the graph of a program."""

    def __init__(self, mesh: LiveMesh, streams: RandomStreams, recomputing: Recomputing) -> None:
        self._mesh = mesh
        self._streams = streams
        self._recomputing = recomputing
        self.has_random = False

    def emit(
        self,
        graph: fx.Graph,
        modules: dict[str, nn.Module],
        layouts: OpLayouts,
        inputs: Sequence[fx.Node],
        *,
        early: bool = False,
    ) -> list[fx.Node]:
        """The nodes of an op's outputs.

        Args:
            graph: Where they are written.
            modules: What the graph calls, by name; what this op needs is added.
            layouts: The op, and how it is split.
            inputs: The nodes of its inputs.
            early: Have an `EarlyOp` begin what can begin before the op's turn, for the caller to pull up.
        """
        op = layouts.op
        parts = self._parts(layouts)
        local = _without_exchange(layouts, parts)
        if local is not None and _is_plain(local) and not op.space.random and not op.updates:
            return _call(graph, op, local, inputs, self._mesh.device)
        run = self._kernel(layouts, parts, local)
        name = f"op_{op.id}"
        modules[name] = ShardedOp(run)
        begun = early_start(self._shard(layouts, parts)) if early and local is None else None
        if begun is not None:
            modules[f"early_{op.id}"] = EarlyOp(begun.start)
            taken = tuple(inputs[place] for place in begun.places)
            inputs = [*inputs, graph.call_module(f"early_{op.id}", taken)]
        result = graph.call_module(name, tuple(inputs))
        return [graph.call_function(operator.getitem, (result, place)) for place in range(len(op.outputs))]

    def _parts(self, layouts: OpLayouts) -> dict[int, Part]:
        sizes, mesh = layouts.op.space.sizes, self._mesh
        return {
            dim: Part.of(sizes[dim], mesh.members(axes), mesh.place(axes))
            for dim, axes in layouts.split.items()
        }

    def _kernel(
        self, layouts: OpLayouts, parts: Mapping[int, Part], local: LocalOp | None
    ) -> Callable[..., tuple[Tensor, ...]]:
        op = layouts.op
        if local is None:
            run = exchange_kernel(self._shard(layouts, parts))
        else:
            kept = _on_device(local, self._mesh.device)

            def run(*inputs: Tensor) -> tuple[Tensor, ...]:
                return run_local(kept, inputs)

        if op.updates:
            run = self._updating(op, run)
        if op.space.random:
            run = self._seeded(layouts, run)
        return run

    def _shard(self, layouts: OpLayouts, parts: Mapping[int, Part]) -> OpShard:
        def group(dims: frozenset[int]) -> Any:
            return self._mesh.group(tuple(sorted(axis for dim in dims for axis in layouts.split[dim])))

        return OpShard(op=layouts.op, parts=parts, groups=group)

    def _seeded(
        self, layouts: OpLayouts, run: Callable[..., tuple[Tensor, ...]]
    ) -> Callable[..., tuple[Tensor, ...]]:
        self.has_random = True
        axes = tuple(sorted(axis for used in layouts.split.values() for axis in used))
        name, shard, streams = layouts.op.name, self._mesh.place(axes), self._streams

        def seeded(*inputs: Tensor) -> tuple[Tensor, ...]:
            streams.start(name, shard)
            return run(*inputs)

        return seeded

    def _updating(self, op: Op, run: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        places = frozenset(place for place, tensor in enumerate(op.inputs) if tensor in op.updates)
        recomputing = self._recomputing

        def updating(*inputs: Tensor) -> tuple[Tensor, ...]:
            if recomputing.now:
                inputs = tuple(one.clone() if place in places else one for place, one in enumerate(inputs))
            return run(*inputs)

        return updating


def call_whole(op: Op, inputs: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """An op at its full size, run now."""
    local = _on_device(localise(op, {}), device)
    return run_local(local, inputs)


def _without_exchange(layouts: OpLayouts, parts: Mapping[int, Part]) -> LocalOp | None:
    """The op at its local sizes; None if its ranks have to exchange something inside it."""
    local = None if layouts.exchanges else localise(layouts.op, parts)
    return None if local is None or local.divide_by_valid else local


def _is_plain(local: LocalOp) -> bool:
    return local.scale == 1.0 and not local.silenced and local.lookup is None


def _on_device(local: LocalOp, device: torch.device) -> LocalOp:
    """The op with the device named where it makes a tensor from nothing."""
    missing = _missing_device(resolve(local.target), local.arguments)
    if not missing:
        return local
    return LocalOp(local.target, {**local.arguments, "device": device}, scale=local.scale)


def _missing_device(target: OpOverload, arguments: Mapping[str, Any]) -> bool:
    return "device" not in arguments and any(one.name == "device" for one in schema_arguments(target))


def _call(
    graph: fx.Graph, op: Op, local: LocalOp, inputs: Sequence[fx.Node], device: torch.device
) -> list[fx.Node]:
    """The op itself, called as its schema says, by position as far as that goes."""
    target = resolve(local.target)
    given = _on_device(local, device).arguments
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_name = False
    for one in schema_arguments(target):
        by_name |= one.kwarg_only or one.name not in given
        if one.name not in given:
            continue
        value = _filled(given[one.name], inputs)
        if by_name:
            kwargs[one.name] = value
        else:
            args.append(value)
    result = graph.call_function(target, tuple(args), kwargs)
    if len(op.outputs) == 1 and _gives_tensor(target):
        return [result]
    return [graph.call_function(operator.getitem, (result, place)) for place in range(len(op.outputs))]


def _gives_tensor(target: OpOverload) -> bool:
    returns = schema_returns(target)
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


def _filled(value: Any, inputs: Sequence[fx.Node]) -> Any:
    if isinstance(value, TensorRef):
        return inputs[value.id]
    return [_filled(item, inputs) for item in value] if isinstance(value, tuple | list) else value
